-- A repeated reply is recognized by the hash of its response. Further blocks of an answer are kept beside its first one.

alter table public.relay_replies
  add column if not exists response_hash bytea,
  add column if not exists continues uuid references public.inbound_messages (id) on delete cascade,
  add column if not exists waits_until timestamptz;
comment on column public.relay_replies.response_hash is 'SHA-256 of the response as the agent sent it; NULL for texts of the hub.';
comment on column public.relay_replies.continues is 'The message whose answer a further block continues; set instead of message_id.';
comment on column public.relay_replies.waits_until is 'Until when it waits for the account''s rate limit to be posted: the end of its callback.';
comment on column public.relay_replies.message_id is 'The message it answers, one reply each; NULL for a further block.';

-- message_id stays unique: only the row that has one may spend the callback.
alter table public.relay_replies alter column message_id drop not null;
alter table public.relay_replies add constraint reply_has_message check ((message_id is null) <> (continues is null));
alter table public.relay_replies add constraint reply_further_spends_nothing check (continues is null or spent_by is null);
alter table public.relay_replies add constraint reply_waiting_is_kept check (waits_until is null or kept_until is not null);
alter table public.relay_replies add constraint reply_hash_length check (octet_length(response_hash) = 32);
-- The same block is kept once. Also for deleting a message.
create unique index if not exists relay_replies_continues_idx on public.relay_replies (continues, response_hash)
  where continues is not null;
-- Replies that wait for their account's rate limit, and their number per account. By time: those that waited stay in it.
create index if not exists relay_replies_waiting_idx on public.relay_replies (waits_until) where waits_until is not null;
create index if not exists relay_replies_waiting_account_idx on public.relay_replies (account_id, waits_until)
  where waits_until is not null;
