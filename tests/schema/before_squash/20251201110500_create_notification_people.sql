-- The people notices go to: what they want, where they are reached, and the toasts that wait for them.

do $$
begin
  -- Users belong to another system; without it, this is as much of them as a preference refers to.
  if to_regnamespace('identity') is null then
    create schema identity;
    comment on schema identity is 'Users, as little of them as preferences refer to.';
    grant usage on schema identity to service_role;
    insert into pabal.made (kind, name) values ('schema', 'identity');
  end if;
  if to_regclass('identity.users') is null then
    create table identity.users (
      id uuid primary key default gen_random_uuid(),
      created_at timestamptz not null default pabal.now()
    );
    comment on table identity.users is 'Registered users.';
    comment on column identity.users.id is 'The user.';
    comment on column identity.users.created_at is 'When they were added.';
    alter table identity.users enable row level security;
    create policy "users_service_role_all" on identity.users for all to service_role using (true) with check (true);
    revoke all on table identity.users from public, anon, authenticated;
    grant select, insert, update, delete on table identity.users to service_role;
    insert into pabal.made (kind, name) values ('table', 'identity.users');
  end if;
end
$$;

-- Preferences ----------------------------------------------------------------------------------------------------------
-- No row means the defaults, so that neither a new user nor a reader ever writes one.

create table if not exists notification.preferences (
  user_id uuid primary key references identity.users (id) on delete cascade,
  dm_enabled boolean not null default true,
  payment_notifications boolean not null default true,
  recovery_notifications boolean not null default true,
  antinuke_notifications boolean not null default true,
  marketing_notifications boolean not null default true,
  updated_at timestamptz not null default pabal.now()
);
comment on table notification.preferences is '사용자별 알림 선호도.';
comment on column notification.preferences.user_id is '→ identity.users.id';
comment on column notification.preferences.dm_enabled is 'DM 전체 on/off';
comment on column notification.preferences.payment_notifications is '결제 알림';
comment on column notification.preferences.recovery_notifications is '복구 알림';
comment on column notification.preferences.antinuke_notifications is 'AntiNuke 일반 알림 (긴급은 override)';
comment on column notification.preferences.marketing_notifications is '마케팅성 알림';
comment on column notification.preferences.updated_at is 'When they last changed.';
drop trigger if exists update_preferences_updated_at on notification.preferences;
create trigger update_preferences_updated_at
  before update on notification.preferences
  for each row
  when (new.updated_at is not distinct from old.updated_at)
  execute function public.update_updated_at_column();

create table if not exists notification.people (
  discord_id text primary key,
  user_id uuid unique references identity.users (id) on delete set null,
  locale text,
  dm_enabled boolean not null default true,
  payment_notifications boolean not null default true,
  recovery_notifications boolean not null default true,
  antinuke_notifications boolean not null default true,
  marketing_notifications boolean not null default true,
  night_consent_at timestamptz,
  created_at timestamptz not null default pabal.now(),
  updated_at timestamptz not null default pabal.now(),
  constraint person_discord_id_named check (discord_id <> ''),
  constraint person_locale_form check (locale ~ '^[a-z]{2}(-[A-Z]{2})?$')
);
comment on table notification.people is 'Discord users, registered or not: who they are here, and what they want until they register.';
comment on column notification.people.discord_id is 'The Discord user id, which is a request''s recipient_id.';
comment on column notification.people.user_id is 'The registered user, whose preferences then rule.';
comment on column notification.people.locale is 'The language they read; empty means the hub''s.';
comment on column notification.people.dm_enabled is 'Direct messages at all.';
comment on column notification.people.payment_notifications is 'Notices about payments.';
comment on column notification.people.recovery_notifications is 'Notices about recovery.';
comment on column notification.people.antinuke_notifications is 'Ordinary AntiNuke notices; emergencies come anyway.';
comment on column notification.people.marketing_notifications is 'Marketing.';
comment on column notification.people.night_consent_at is 'When they agreed to marketing at night; empty means it waits for the morning.';
comment on column notification.people.created_at is 'When they were added.';
comment on column notification.people.updated_at is 'When it last changed.';
drop trigger if exists update_people_updated_at on notification.people;
create trigger update_people_updated_at
  before update on notification.people
  for each row
  when (new.updated_at is not distinct from old.updated_at)
  execute function public.update_updated_at_column();

create table if not exists notification.person_tokens (
  token_hash text primary key,
  discord_id text not null,
  kind text not null default 'link',
  issued_by text not null,
  created_at timestamptz not null default pabal.now(),
  expires_at timestamptz not null default pabal.now() + interval '15 minutes',
  swapped_at timestamptz,
  constraint person_token_hash_form check (token_hash ~ '^[0-9a-f]{64}$'),
  constraint person_token_kind check (kind in ('link', 'cookie')),
  constraint person_token_expires_later check (expires_at > created_at),
  constraint person_token_link_is_swapped check (swapped_at is null or kind = 'link')
);
comment on table notification.person_tokens is 'What lets one person see their own toasts and preferences.';
comment on column notification.person_tokens.token_hash is 'SHA-256 of the token in hex.';
comment on column notification.person_tokens.discord_id is 'Whose it is; the person need not be known yet.';
comment on column notification.person_tokens.kind is 'link, or the cookie it was swapped for.';
comment on column notification.person_tokens.issued_by is 'The service that asked for it, or for the link a cookie came from.';
comment on column notification.person_tokens.created_at is 'When it was made.';
comment on column notification.person_tokens.expires_at is 'When it stops working.';
comment on column notification.person_tokens.swapped_at is 'When a link was swapped for a cookie.';
create index if not exists person_tokens_discord_idx on notification.person_tokens (discord_id);
create index if not exists person_tokens_expires_idx on notification.person_tokens (expires_at);

-- Addresses ------------------------------------------------------------------------------------------------------------

create table if not exists notification.addresses (
  recipient_type text not null,
  recipient_id text not null,
  dm_channel_id text,
  unhealthy_since timestamptz,
  reason text,
  updated_at timestamptz not null default pabal.now(),
  primary key (recipient_type, recipient_id),
  constraint address_type check (recipient_type in ('user_dm', 'guild_audit_channel', 'dashboard_toast')),
  constraint address_channel_is_for_dm check (dm_channel_id is null or recipient_type = 'user_dm'),
  constraint address_unhealthy_says_why check ((unhealthy_since is null) = (reason is null))
);
comment on table notification.addresses is 'What was learned about an address by writing to it.';
comment on column notification.addresses.recipient_type is 'The channel.';
comment on column notification.addresses.recipient_id is 'The address in it.';
comment on column notification.addresses.dm_channel_id is 'The DM channel Discord opened for the user, to be opened only once.';
comment on column notification.addresses.unhealthy_since is 'Since when it refuses us for good; empty means it works.';
comment on column notification.addresses.reason is 'How it refused.';
comment on column notification.addresses.updated_at is 'When it last changed.';
drop trigger if exists update_addresses_updated_at on notification.addresses;
create trigger update_addresses_updated_at
  before update on notification.addresses
  for each row
  when (new.updated_at is not distinct from old.updated_at)
  execute function public.update_updated_at_column();

-- Toasts ---------------------------------------------------------------------------------------------------------------

create sequence if not exists notification.toast_changes;
comment on sequence notification.toast_changes is 'Numbers every change of every toast, for streams that resume.';

create table if not exists notification.toasts (
  id uuid primary key references notification.requests (id) on delete cascade,
  recipient_id text not null,
  category text not null,
  criticality text not null,
  locale text not null,
  title text,
  body text not null,
  created_at timestamptz not null default pabal.now(),
  seen_at timestamptz,
  read_at timestamptz,
  archived_at timestamptz,
  seq bigint not null default nextval('notification.toast_changes'),
  constraint toast_read_is_seen check (read_at is null or seen_at is not null)
);
comment on table notification.toasts is 'The inbox of the dashboard: one toast for each request that reached it.';
comment on column notification.toasts.id is 'The request it came from, so that it comes once.';
comment on column notification.toasts.recipient_id is 'The Discord user id.';
comment on column notification.toasts.category is 'The template''s category.';
comment on column notification.toasts.criticality is 'The template''s criticality.';
comment on column notification.toasts.locale is 'The language it is written in.';
comment on column notification.toasts.title is 'The rendered title.';
comment on column notification.toasts.body is 'The rendered text.';
comment on column notification.toasts.created_at is 'When it arrived.';
comment on column notification.toasts.seen_at is 'When it was on a screen.';
comment on column notification.toasts.read_at is 'When it was read.';
comment on column notification.toasts.archived_at is 'When it was put away.';
comment on column notification.toasts.seq is 'Its newest change: a stream that resumes after one hears of arrivals and of what other tabs did.';
create index if not exists toasts_inbox_idx on notification.toasts (recipient_id, id desc) where archived_at is null;
create index if not exists toasts_unread_idx on notification.toasts (recipient_id) where read_at is null and archived_at is null;
create index if not exists toasts_changes_idx on notification.toasts (recipient_id, seq);

create or replace function notification.touch_toast() returns trigger
language plpgsql
set search_path = ''
as $$
begin
  if new.read_at is not null then
    new.seen_at := coalesce(new.seen_at, new.read_at);
  end if;
  new.seq := nextval('notification.toast_changes');
  return new;
end
$$;
comment on function notification.touch_toast() is 'Numbers the change, and counts what was read as seen.';
revoke all on function notification.touch_toast() from public, anon, authenticated;

drop trigger if exists toasts_touch on notification.toasts;
create trigger toasts_touch
  before update on notification.toasts
  for each row
  when ((old.seen_at, old.read_at, old.archived_at) is distinct from (new.seen_at, new.read_at, new.archived_at))
  execute function notification.touch_toast();

-- Who may --------------------------------------------------------------------------------------------------------------

revoke all on sequence notification.toast_changes from public, anon, authenticated;
grant usage on sequence notification.toast_changes to service_role;

alter table notification.preferences enable row level security;
drop policy if exists "preferences_service_role_all" on notification.preferences;
create policy "preferences_service_role_all" on notification.preferences for all to service_role using (true) with check (true);
revoke all on table notification.preferences from public, anon, authenticated;
grant select, insert, update, delete on table notification.preferences to service_role;

alter table notification.people enable row level security;
drop policy if exists "people_service_role_all" on notification.people;
create policy "people_service_role_all" on notification.people for all to service_role using (true) with check (true);
revoke all on table notification.people from public, anon, authenticated;
grant select, insert, update, delete on table notification.people to service_role;

alter table notification.person_tokens enable row level security;
drop policy if exists "person_tokens_service_role_all" on notification.person_tokens;
create policy "person_tokens_service_role_all" on notification.person_tokens for all to service_role using (true) with check (true);
revoke all on table notification.person_tokens from public, anon, authenticated;
grant select, insert, update, delete on table notification.person_tokens to service_role;

alter table notification.addresses enable row level security;
drop policy if exists "addresses_service_role_all" on notification.addresses;
create policy "addresses_service_role_all" on notification.addresses for all to service_role using (true) with check (true);
revoke all on table notification.addresses from public, anon, authenticated;
grant select, insert, update, delete on table notification.addresses to service_role;

alter table notification.toasts enable row level security;
drop policy if exists "toasts_service_role_all" on notification.toasts;
create policy "toasts_service_role_all" on notification.toasts for all to service_role using (true) with check (true);
revoke all on table notification.toasts from public, anon, authenticated;
grant select, insert, update, delete on table notification.toasts to service_role;
