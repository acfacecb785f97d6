-- A browser's EventSource sends no Authorization header. A ticket in the query opens one stream instead: it is used once,
-- within seconds, by a page of the origin that it was issued to.

create table if not exists notification.stream_tickets (
  ticket_hash text primary key,
  token_hash text not null references notification.person_tokens (token_hash) on delete cascade,
  origin text not null default '',
  created_at timestamptz not null default pabal.now(),
  expires_at timestamptz not null default pabal.now() + interval '30 seconds',
  constraint stream_ticket_hash_form check (ticket_hash ~ '^[0-9a-f]{64}$'),
  constraint stream_ticket_origin_length check (char_length(origin) <= 300),
  constraint stream_ticket_expires_later check (expires_at > created_at)
);
comment on table notification.stream_tickets is 'Tickets that open one stream of toasts; deleted by their use.';
comment on column notification.stream_tickets.ticket_hash is 'SHA-256 of the ticket in hex.';
comment on column notification.stream_tickets.token_hash is 'The person''s token that it was issued for; the stream ends with it.';
comment on column notification.stream_tickets.origin is 'Origin of the page; empty for pages of the hub and for programs.';
comment on column notification.stream_tickets.created_at is 'When it was created.';
comment on column notification.stream_tickets.expires_at is 'When it expires.';
create index if not exists stream_tickets_token_idx on notification.stream_tickets (token_hash);
create index if not exists stream_tickets_expires_idx on notification.stream_tickets (expires_at);

alter table notification.stream_tickets enable row level security;
drop policy if exists "stream_tickets_service_role_all" on notification.stream_tickets;
create policy "stream_tickets_service_role_all" on notification.stream_tickets for all to service_role using (true) with check (true);
revoke all on table notification.stream_tickets from public, anon, authenticated;
grant select, insert, update, delete on table notification.stream_tickets to service_role;
