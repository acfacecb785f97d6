-- The relay: a stream knows where its client had got to, and what nobody needs any more is found without reading the rest.

-- Several clients may use one token. Which of a token's open streams a client has left is told by the ids it was sent, and,
-- for one it was sent nothing on, by the id it began with.
alter table public.relay_streams add column if not exists after_id bigint;
comment on column public.relay_streams.after_id is 'The newest id its client had when it came; empty if it did not say.';

-- For the chore that gives up sessions whose user was not let in.
create index if not exists relay_sessions_waiting_idx on public.relay_sessions (account_id)
  where account_id is not null and paired_at is null and revoked_at is null;

-- For the chore that forgets who wrote long ago and is nobody's. By the first time somebody wrote, which never changes: an
-- index with the last would make every webhook write it.
create index if not exists conversation_mappings_unpaired_idx on public.conversation_mappings (first_seen_at)
  where state = 'UNPAIRED';
