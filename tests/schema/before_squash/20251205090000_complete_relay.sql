-- What the relay's doors need beside the messages: an order streams can resume by, news for open streams, answers to repeats.

-- Streams --------------------------------------------------------------------------------------------------------------------
-- `seq` is drawn before its transaction commits, so a lower one may be seen later: as the id of a stream's event it would
-- run backwards. What a stream resumes by is drawn when the message is handed out.

create sequence if not exists public.inbound_messages_handed_seq;
comment on sequence public.inbound_messages_handed_seq is 'The ids of stream events, in the order of handing out.';
revoke all on sequence public.inbound_messages_handed_seq from public, anon, authenticated;
grant usage, select on sequence public.inbound_messages_handed_seq to service_role;

alter table public.inbound_messages add column if not exists handed bigint;
comment on column public.inbound_messages.handed is 'The id under which it was last handed out; a stream resumes by it.';

create table if not exists public.relay_news (
  id bigint primary key generated always as identity,
  kind text not null,
  account_id uuid,
  session_id uuid,
  data jsonb not null default '{}',
  created_at timestamptz not null default pabal.now(),
  constraint relay_news_kind check (kind in ('paired', 'unpaired', 'disabled', 'revoked')),
  constraint relay_news_for_somebody check (account_id is not null or session_id is not null)
);
comment on table public.relay_news is 'What open streams must be told that is no message; kept for minutes.';
comment on column public.relay_news.id is 'The news.';
comment on column public.relay_news.kind is 'paired, unpaired, disabled (the account), revoked (a token of it).';
comment on column public.relay_news.account_id is 'Whose streams are told; the account may be gone already.';
comment on column public.relay_news.session_id is 'Only the streams of this session; empty means all of the account''s.';
comment on column public.relay_news.data is 'What they are told.';
comment on column public.relay_news.created_at is 'When it happened.';
create index if not exists relay_news_created_at_idx on public.relay_news (created_at);

alter table public.relay_news enable row level security;
drop policy if exists "relay_news_service_role_all" on public.relay_news;
create policy "relay_news_service_role_all" on public.relay_news for all to service_role using (true) with check (true);
revoke all on table public.relay_news from public, anon, authenticated;
revoke all on sequence public.relay_news_id_seq from public, anon, authenticated;
grant select, insert, update, delete on table public.relay_news to service_role;

-- Repeats --------------------------------------------------------------------------------------------------------------------

create table if not exists public.command_answers (
  channel_id text not null,
  source_event_id text not null,
  conversation_key text not null references public.conversation_mappings (conversation_key) on delete cascade,
  answer jsonb,
  created_at timestamptz not null default pabal.now(),
  primary key (channel_id, source_event_id)
);
comment on table public.command_answers is 'What a chat command was answered, for the webhook that is repeated.';
comment on column public.command_answers.channel_id is 'The channel.';
comment on column public.command_answers.source_event_id is 'What makes a repeated webhook a repeat, within its channel.';
comment on column public.command_answers.conversation_key is 'Who typed it.';
comment on column public.command_answers.answer is 'What it was told; empty only while it is being carried out.';
comment on column public.command_answers.created_at is 'When it was typed.';
create index if not exists command_answers_conversation_idx on public.command_answers (conversation_key);
create index if not exists command_answers_created_at_idx on public.command_answers (created_at);

alter table public.command_answers enable row level security;
drop policy if exists "command_answers_service_role_all" on public.command_answers;
create policy "command_answers_service_role_all" on public.command_answers for all to service_role using (true) with check (true);
revoke all on table public.command_answers from public, anon, authenticated;
grant select, insert, update, delete on table public.command_answers to service_role;

-- Limits ---------------------------------------------------------------------------------------------------------------------

create or replace function pabal.take(key text, step interval, span interval, wanted integer) returns integer
language plpgsql
set search_path = ''
as $$
declare
  empty_at timestamptz;
  granted integer;
begin
  insert into pabal.limits as l (key, tat) values (take.key, pabal.now()) on conflict do nothing;
  select greatest(l.tat, pabal.now()) into empty_at from pabal.limits l where l.key = take.key for no key update;
  granted := greatest(0, least(
    take.wanted,
    floor(extract(epoch from pabal.now() + take.span - empty_at) / extract(epoch from take.step))::integer
  ));
  if granted > 0 then
    update pabal.limits l set tat = empty_at + take.step * granted where l.key = take.key;
  end if;
  return granted;
end
$$;
comment on function pabal.take(text, interval, interval, integer) is 'Takes as many calls from a limit as it has left, and says how many.';
revoke all on function pabal.take(text, interval, interval, integer) from public, anon, authenticated;
grant execute on function pabal.take(text, interval, interval, integer) to service_role;

-- Open streams ---------------------------------------------------------------------------------------------------------------

create table if not exists public.relay_streams (
  id uuid primary key,
  account_id uuid references public.accounts (id) on delete cascade,
  token_id uuid not null,
  opened_at timestamptz not null default pabal.now(),
  alive_until timestamptz not null
);
comment on table public.relay_streams is 'The streams that are open now, in whichever process.';
comment on column public.relay_streams.id is 'The stream.';
comment on column public.relay_streams.account_id is 'Whose messages it gets; empty until its session is paired.';
comment on column public.relay_streams.token_id is 'What opened it: a session, or the account itself by its relay token.';
comment on column public.relay_streams.opened_at is 'When it was opened.';
comment on column public.relay_streams.alive_until is 'A stream nobody keeps alive past this is gone, and its process too.';
create index if not exists relay_streams_account_idx on public.relay_streams (account_id);
create index if not exists relay_streams_token_idx on public.relay_streams (token_id);

alter table public.relay_streams enable row level security;
drop policy if exists "relay_streams_service_role_all" on public.relay_streams;
create policy "relay_streams_service_role_all" on public.relay_streams for all to service_role using (true) with check (true);
revoke all on table public.relay_streams from public, anon, authenticated;
grant select, insert, update, delete on table public.relay_streams to service_role;
