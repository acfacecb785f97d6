-- Links between Discord accounts and registered users: who made them, what services assert, and requests of users.

alter table notification.people add column if not exists linked_at timestamptz;
alter table notification.people add column if not exists linked_by text;
comment on column notification.people.linked_at is 'When the account was linked to the registered user.';
comment on column notification.people.linked_by is 'Who linked it: the person or an operator.';

alter table notification.person_tokens add column if not exists user_id uuid references identity.users (id) on delete cascade;
comment on column notification.person_tokens.user_id is 'The registered user, if the token was issued for one; discord_id then has the same id as text.';
create index if not exists person_tokens_user_idx on notification.person_tokens (user_id) where user_id is not null;

create table if not exists notification.service_links (
  service_name text not null references public.services (name) on delete cascade,
  discord_id text not null,
  user_id uuid not null references identity.users (id) on delete cascade,
  created_at timestamptz not null default pabal.now(),
  primary key (service_name, discord_id),
  constraint service_link_discord_id_named check (discord_id <> '')
);
comment on table notification.service_links is 'Links that services assert. They apply to what that service sends, and give access to nothing.';
comment on column notification.service_links.service_name is 'The service that asserts the link.';
comment on column notification.service_links.discord_id is 'Discord user id.';
comment on column notification.service_links.user_id is 'Registered user, whose preferences apply as well.';
comment on column notification.service_links.created_at is 'When the service asserted it.';
create index if not exists service_links_user_idx on notification.service_links (user_id);
create index if not exists service_links_discord_idx on notification.service_links (discord_id);

create table if not exists notification.link_requests (
  code_hash text primary key,
  user_id uuid not null references identity.users (id) on delete cascade,
  discord_id text not null,
  session_hash text not null,
  created_at timestamptz not null default pabal.now(),
  expires_at timestamptz not null,
  used_at timestamptz,
  constraint link_request_hash_form check (code_hash ~ '^[0-9a-f]{64}$' and session_hash ~ '^[0-9a-f]{64}$'),
  constraint link_request_discord_id_form check (discord_id ~ '^[0-9]{1,20}$'),
  constraint link_request_expires_later check (expires_at > created_at)
);
comment on table notification.link_requests is 'Requests of registered users to link a Discord account, confirmed with a code sent to that account.';
comment on column notification.link_requests.code_hash is 'SHA-256 of the code in hex. The code itself is only in the direct message.';
comment on column notification.link_requests.user_id is 'Registered user who began it.';
comment on column notification.link_requests.discord_id is 'Discord account that gets the code.';
comment on column notification.link_requests.session_hash is 'Hash of the session it was begun in; only that session can confirm it.';
comment on column notification.link_requests.created_at is 'When it was begun.';
comment on column notification.link_requests.expires_at is 'When the code expires.';
comment on column notification.link_requests.used_at is 'When it was confirmed.';
create index if not exists link_requests_user_idx on notification.link_requests (user_id);
create index if not exists link_requests_discord_idx on notification.link_requests (discord_id);
create index if not exists link_requests_expires_idx on notification.link_requests (expires_at);

alter table notification.service_links enable row level security;
drop policy if exists "service_links_service_role_all" on notification.service_links;
create policy "service_links_service_role_all" on notification.service_links for all to service_role using (true) with check (true);
revoke all on table notification.service_links from public, anon, authenticated;
grant select, insert, update, delete on table notification.service_links to service_role;

alter table notification.link_requests enable row level security;
drop policy if exists "link_requests_service_role_all" on notification.link_requests;
create policy "link_requests_service_role_all" on notification.link_requests for all to service_role using (true) with check (true);
revoke all on table notification.link_requests from public, anon, authenticated;
grant select, insert, update, delete on table notification.link_requests to service_role;
