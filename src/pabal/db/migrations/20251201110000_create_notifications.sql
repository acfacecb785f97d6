-- Notifications: templates, rules, requests and their attempts; recipients with their preferences, addresses and toasts.

do $$
declare
  role text;
begin
  if to_regnamespace('notification') is null then
    create schema notification;
    comment on schema notification is 'Notifications.';
    insert into pabal.created_objects (kind, name) values ('schema', 'notification');
  end if;
  foreach role in array array['service_role', 'pabal_publisher'] loop
    if not has_schema_privilege(role, 'notification', 'usage') then
      execute format('grant usage on schema notification to %I', role);
      insert into pabal.created_objects (kind, name) values ('usage', role || ' on notification');
    end if;
  end loop;

  -- Guilds and users belong to another system. Without it, only the columns that are referred to are created.
  if to_regnamespace('guild') is null then
    create schema guild;
    comment on schema guild is 'Guilds that notifications refer to.';
    grant usage on schema guild to service_role;
    insert into pabal.created_objects (kind, name) values ('schema', 'guild');
  end if;
  if to_regclass('guild.guilds') is null then
    create table guild.guilds (
      id uuid primary key default gen_random_uuid(),
      created_at timestamptz not null default pabal.now()
    );
    comment on table guild.guilds is 'Guilds that notifications refer to.';
    comment on column guild.guilds.id is 'Id of the guild.';
    comment on column guild.guilds.created_at is 'When it was added.';
    alter table guild.guilds enable row level security;
    create policy "guilds_service_role_all" on guild.guilds for all to service_role using (true) with check (true);
    revoke all on table guild.guilds from public, anon, authenticated;
    grant select, insert, update, delete on table guild.guilds to service_role;
    insert into pabal.created_objects (kind, name) values ('table', 'guild.guilds');
  end if;

  if to_regnamespace('identity') is null then
    create schema identity;
    comment on schema identity is 'Users that preferences refer to.';
    grant usage on schema identity to service_role;
    insert into pabal.created_objects (kind, name) values ('schema', 'identity');
  end if;
  if to_regclass('identity.users') is null then
    create table identity.users (
      id uuid primary key default gen_random_uuid(),
      created_at timestamptz not null default pabal.now()
    );
    comment on table identity.users is 'Registered users.';
    comment on column identity.users.id is 'Id of the user.';
    comment on column identity.users.created_at is 'When the user was added.';
    alter table identity.users enable row level security;
    create policy "users_service_role_all" on identity.users for all to service_role using (true) with check (true);
    revoke all on table identity.users from public, anon, authenticated;
    grant select, insert, update, delete on table identity.users to service_role;
    insert into pabal.created_objects (kind, name) values ('table', 'identity.users');
  end if;
end
$$;

-- Templates ------------------------------------------------------------------------------------------------------------

create table if not exists notification.templates (
  key text primary key,
  category text not null,
  criticality text not null default 'normal',
  variables jsonb not null default '{}',
  texts jsonb not null,
  version integer not null default 1,
  checksum text not null,
  registered_at timestamptz not null default pabal.now(),
  retired_at timestamptz,
  constraint template_key_form check (key ~ '^[a-z0-9_]+(\.[a-z0-9_]+)*$'),
  constraint template_category check (category in ('payment', 'recovery', 'antinuke', 'marketing', 'system')),
  constraint template_criticality check (criticality in ('normal', 'important', 'emergency')),
  constraint template_variables_object check (jsonb_typeof(variables) = 'object'),
  constraint template_texts_object check (jsonb_typeof(texts) = 'object')
);
comment on table notification.templates is 'Templates of the code, registered when the hub starts; a request can use no other.';
comment on column notification.templates.key is 'Name, such as payment.succeeded.';
comment on column notification.templates.category is 'payment, recovery, antinuke, marketing or system: the preference that applies.';
comment on column notification.templates.criticality is 'normal, important or emergency; an emergency overrides the preferences.';
comment on column notification.templates.variables is 'Variables and their types: text, integer, number or boolean. A payload must have each of them.';
comment on column notification.templates.texts is 'Texts by channel and locale.';
comment on column notification.templates.version is 'Number of the version, from 1.';
comment on column notification.templates.checksum is 'Checksum of the file it was read from.';
comment on column notification.templates.registered_at is 'When this version was registered.';
comment on column notification.templates.retired_at is 'When it was removed from the code; old requests still refer to it.';

create table if not exists notification.rules (
  id uuid primary key default pabal.uuid7(),
  name text not null unique,
  event_pattern text not null,
  template_key text not null references notification.templates (key) on delete restrict,
  recipients jsonb not null,
  channels text[] not null,
  variables jsonb not null default '{}',
  guild_path text,
  expires_after interval,
  is_active boolean not null default true,
  created_by text not null default 'sql:' || session_user,
  created_at timestamptz not null default pabal.now(),
  updated_at timestamptz not null default pabal.now(),
  incident_path text,
  constraint rule_event_pattern_form check (event_pattern ~ '^(\*|[a-z0-9_]+)(\.(\*|[a-z0-9_]+))*$'),
  constraint rule_recipients_array check (jsonb_typeof(recipients) = 'array' and recipients <> '[]'),
  constraint rule_channels_known check (
    cardinality(channels) > 0 and channels <@ array['user_dm', 'guild_audit_channel', 'dashboard_toast']
  ),
  constraint rule_variables_object check (jsonb_typeof(variables) = 'object'),
  constraint rule_expires_later check (expires_after > interval '0')
);
comment on table notification.rules is 'Rules: which events create which notification requests.';
comment on column notification.rules.id is 'Id of the rule.';
comment on column notification.rules.name is 'Name of the rule.';
comment on column notification.rules.event_pattern is 'Event types it applies to; * matches one part, or at the end all remaining ones.';
comment on column notification.rules.template_key is 'The template.';
comment on column notification.rules.recipients is 'Paths in the payload to the recipients.';
comment on column notification.rules.channels is 'Recipient types a request is created for.';
comment on column notification.rules.variables is 'Payload path of each template variable; a variable that is not listed has its own name as path.';
comment on column notification.rules.guild_path is 'Path in the payload to the guild, if any.';
comment on column notification.rules.expires_after is 'Time to live of its requests.';
comment on column notification.rules.is_active is 'Whether it is enabled.';
comment on column notification.rules.created_by is 'Who created it.';
comment on column notification.rules.created_at is 'When it was created.';
comment on column notification.rules.updated_at is 'When the row last changed.';
comment on column notification.rules.incident_path is 'Path in the payload to the incident, if any: emergencies of one incident are grouped by the storm guard.';
create index if not exists rules_template_idx on notification.rules (template_key);
drop trigger if exists update_rules_updated_at on notification.rules;
create trigger update_rules_updated_at
  before update on notification.rules
  for each row
  when (new.updated_at is not distinct from old.updated_at)
  execute function public.update_updated_at_column();

create or replace function notification.sync_rule_subscription() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
begin
  if tg_op = 'DELETE' or (tg_op = 'UPDATE' and new.id is distinct from old.id) then
    delete from pabal.subscriptions s where s.id = old.id and s.mode = 'rule';
  end if;
  if tg_op <> 'DELETE' then
    insert into pabal.subscriptions (id, service_name, mode, event_types, description, disabled_at, disabled_reason)
    values (
      new.id, 'hub', 'rule', array[new.event_pattern], 'rule ' || new.name,
      case when not new.is_active then pabal.now() end, case when not new.is_active then 'the rule is disabled' end
    )
    on conflict (id) do update
    set event_types = excluded.event_types, description = excluded.description,
        disabled_at = excluded.disabled_at, disabled_reason = excluded.disabled_reason;
  end if;
  return null;
end
$$;
comment on function notification.sync_rule_subscription() is 'Maintains the subscription of the hub to the events of a rule; it has the id of the rule.';
revoke all on function notification.sync_rule_subscription() from public, anon, authenticated;

drop trigger if exists rules_sync_subscription on notification.rules;
create trigger rules_sync_subscription
  after insert or delete or update of id, name, event_pattern, is_active on notification.rules
  for each row
  execute function notification.sync_rule_subscription();

-- Requests -------------------------------------------------------------------------------------------------------------

create table if not exists notification.requests (
  id uuid primary key,
  recipient_type text not null check (recipient_type in ('user_dm', 'guild_audit_channel', 'dashboard_toast')),
  recipient_id text not null,
  guild_id uuid references guild.guilds (id) on delete set null,
  template_key text not null references notification.templates (key) on delete restrict,
  payload jsonb not null,
  state text not null check (state in ('pending', 'sent', 'failed', 'suppressed')),
  attempt_count integer not null default 0,
  last_error text,
  scheduled_at timestamptz not null default pabal.now(),
  sent_at timestamptz,
  created_at timestamptz not null default pabal.now(),
  priority smallint not null default 5,
  expires_at timestamptz,
  locale text,
  dedupe_key text,
  incident text,
  event_id uuid,
  rule_id uuid,
  source_service text references public.services (name) on delete restrict,
  requested_by text not null default 'sql:' || session_user,
  idempotency_key text,
  content_hash bytea,
  correlation_id text,
  lease uuid,
  leased_until timestamptz,
  held_by text,
  nonce text not null generated always as (left(replace(id::text, '-', ''), 25)) stored,
  decision jsonb not null default '[]',
  reason text,
  ended_at timestamptz,
  claimed_at timestamptz,
  guarded_at timestamptz,
  again_of uuid,
  constraint request_recipient_named check (recipient_id <> ''),
  constraint request_payload_object check (jsonb_typeof(payload) = 'object'),
  constraint request_attempts check (attempt_count between 0 and 3),
  constraint request_sent_has_time check ((state = 'sent') = (sent_at is not null)),
  constraint request_ended_has_time check ((state = 'pending') = (ended_at is null)),
  constraint request_failed_has_error check (state <> 'failed' or coalesce(last_error, '') <> ''),
  -- coalesce: a CHECK whose result is NULL passes, so a missing reason would.
  constraint request_ended_has_reason check (
    case state
      when 'suppressed' then coalesce(reason in (
        'dm_disabled', 'category_off', 'duplicate', 'address_unhealthy', 'expired', 'storm', 'cancelled'
      ), false)
      when 'failed' then coalesce(reason in ('exhausted', 'refused', 'unknown', 'unrenderable'), false)
      else reason is null
    end
  ),
  -- A request in flight is pending with a lease; there is no state for it.
  constraint request_lease_has_end check ((lease is null) = (leased_until is null)),
  constraint request_lease_is_pending check (lease is null or state = 'pending'),
  constraint request_priority check (priority in (1, 3, 5)),
  constraint request_locale_form check (locale ~ '^[a-z]{2}(-[A-Z]{2})?$'),
  constraint request_decision_array check (jsonb_typeof(decision) = 'array'),
  constraint request_key_has_source check (idempotency_key is null or source_service is not null)
) with (
  fillfactor = 80,
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_insert_scale_factor = 0.05,
  autovacuum_analyze_scale_factor = 0.02
);
comment on table notification.requests is '발송 요청/이력.';
comment on column notification.requests.id is '요청 ID';
comment on column notification.requests.recipient_type is '발송 채널';
comment on column notification.requests.recipient_id is 'Discord user ID 또는 channel ID';
comment on column notification.requests.guild_id is '관련 길드';
comment on column notification.requests.template_key is '템플릿 식별자';
comment on column notification.requests.payload is '템플릿 변수';
comment on column notification.requests.state is '상태';
comment on column notification.requests.attempt_count is '시도 횟수';
comment on column notification.requests.last_error is '마지막 실패 사유';
comment on column notification.requests.scheduled_at is '예약 발송 시각';
comment on column notification.requests.sent_at is '실제 발송 시각';
comment on column notification.requests.created_at is 'When it was requested.';
comment on column notification.requests.priority is 'From the template''s criticality: 1 emergency, 3 important, 5 normal.';
comment on column notification.requests.expires_at is 'Not sent after this time; NULL means no limit.';
comment on column notification.requests.locale is 'Requested language; NULL means that of the recipient.';
comment on column notification.requests.dedupe_key is 'Unique key of requests created by rules: event, rule, recipient and channel.';
comment on column notification.requests.incident is 'Incident of an emergency, for the storm guard.';
comment on column notification.requests.event_id is 'Event that created it; it may be deleted already.';
comment on column notification.requests.rule_id is 'Rule that created it; it may be deleted already.';
comment on column notification.requests.source_service is 'Service that requested it.';
comment on column notification.requests.requested_by is 'Who requested it: a service, a rule, the hub or a database login.';
comment on column notification.requests.idempotency_key is 'Key of the caller, unique within its service.';
comment on column notification.requests.content_hash is 'Hash of the content sent with that key; other content is a conflict.';
comment on column notification.requests.correlation_id is 'Correlation id of the caller.';
comment on column notification.requests.lease is 'Fence: a settle that does not present this lease changes nothing.';
comment on column notification.requests.leased_until is 'When the lease expires and the request is due again.';
comment on column notification.requests.held_by is 'The worker that holds it or last held it.';
comment on column notification.requests.nonce is 'Nonce by which Discord detects a repeat: the same for every attempt, at most 25 characters.';
comment on column notification.requests.decision is 'Steps of the decision to send it or not.';
comment on column notification.requests.reason is 'Why it was suppressed or failed.';
comment on column notification.requests.ended_at is 'When it was sent, failed or suppressed.';
comment on column notification.requests.claimed_at is 'When it was last claimed: the start of the current attempt.';
comment on column notification.requests.guarded_at is 'When an emergency passed the storm guard; its retries are not counted again.';
comment on column notification.requests.again_of is 'The failed request that this one repeats; it may be deleted already, so there is no foreign key.';

create index if not exists requests_state_scheduled_idx on notification.requests (state, scheduled_at) where state = 'pending';
create index if not exists requests_guild_created_idx on notification.requests (guild_id, created_at desc);
create index if not exists requests_recipient_idx on notification.requests (recipient_type, recipient_id, created_at desc);
-- The claim: due requests of each channel and priority. Without the lease, so that claiming is HOT. By channel, so that a
-- slow one does not delay the others.
create index if not exists requests_channel_due_idx on notification.requests (recipient_type, priority, scheduled_at)
  where state = 'pending';
create index if not exists requests_expiry_idx on notification.requests (expires_at) where state = 'pending' and expires_at is not null;
-- The purge: by ended_at, so that no pending or scheduled request is deleted.
create index if not exists requests_ended_idx on notification.requests (ended_at) where ended_at is not null;
-- Failed requests: counted every second, listed by ended_at.
create index if not exists requests_failed_idx on notification.requests (ended_at) where state = 'failed';
create unique index if not exists requests_dedupe_key on notification.requests (dedupe_key) where dedupe_key is not null;
create unique index if not exists requests_idempotency_key on notification.requests (source_service, idempotency_key)
  where idempotency_key is not null;
create index if not exists requests_event_idx on notification.requests (event_id) where event_id is not null;
create index if not exists requests_correlation_idx on notification.requests (correlation_id) where correlation_id is not null;
create index if not exists requests_again_of_idx on notification.requests (again_of) where again_of is not null;
-- The list of one service's requests, or of all services merged. None of its columns changes, so updates stay HOT.
create index if not exists requests_source_idx on notification.requests (coalesce(source_service, ''), created_at desc, id desc);
-- The same list of one state: few rows among very many sent ones.
create index if not exists requests_unsent_idx on notification.requests (state, coalesce(source_service, ''), created_at desc, id desc)
  where state <> 'sent';
-- Storm guard: recent emergencies of a recipient, and whether one had the same incident.
create index if not exists requests_guarded_idx on notification.requests (recipient_type, recipient_id, guarded_at)
  where guarded_at is not null;
-- Storm guard: pending emergencies of a recipient, and its pending summary.
create index if not exists requests_waiting_emergencies_idx on notification.requests (recipient_type, recipient_id, created_at desc)
  where state = 'pending' and priority = 1;
-- Failed emergencies without an operator alert: read every second, almost always empty.
create index if not exists requests_unraised_idx on notification.requests (ended_at)
  where state = 'failed' and priority = 1 and not decision ? 'raised';
-- Operator alerts about a recipient, for its erasure.
create index if not exists requests_alert_recipient_idx on notification.requests ((payload ->> 'recipient'))
  where template_key = 'system.undelivered';

-- MarkSent and MarkFailed of the specification do not set ended_at; it is completed here. sent_at and last_error are
-- theirs to set, which the constraints check.
create or replace function notification.settle_request() returns trigger
language plpgsql
set search_path = ''
as $$
begin
  if new.state = 'pending' then
    new.ended_at := null;
    new.reason := null;
  else
    new.ended_at := coalesce(new.ended_at, new.sent_at, pabal.now());
    new.lease := null;
    new.leased_until := null;
    if new.state = 'failed' then
      new.reason := coalesce(new.reason, 'exhausted');
    end if;
  end if;
  return new;
end
$$;
comment on function notification.settle_request() is 'Completes the columns of a request whose state was set alone.';
revoke all on function notification.settle_request() from public, anon, authenticated;

drop trigger if exists requests_settle on notification.requests;
create trigger requests_settle
  before insert or update on notification.requests
  for each row
  when ((new.state = 'pending') <> (new.ended_at is null) or (new.state <> 'pending' and new.lease is not null))
  execute function notification.settle_request();

create table if not exists notification.attempts (
  id bigint generated always as identity primary key,
  request_id uuid not null references notification.requests (id) on delete cascade,
  lease uuid not null,
  attempt smallint not null,
  worker text,
  started_at timestamptz not null,
  ended_at timestamptz not null default pabal.now(),
  outcome text not null,
  why text,
  answer jsonb,
  unique (request_id, lease),
  constraint attempt_number check (attempt between 0 and 3),
  constraint attempt_outcome check (outcome in ('done', 'retry', 'snooze', 'dead', 'suppressed', 'unknown')),
  constraint attempt_has_reason check (outcome = 'done' or why is not null)
);
comment on table notification.attempts is 'Attempts of requests and their outcomes. Append-only.';
comment on column notification.attempts.id is 'Order in which the attempts ended.';
comment on column notification.attempts.request_id is 'The request.';
comment on column notification.attempts.lease is 'Lease of the attempt; one row each.';
comment on column notification.attempts.attempt is 'attempt_count after the attempt; a snooze does not count.';
comment on column notification.attempts.worker is 'The worker.';
comment on column notification.attempts.started_at is 'When the request was claimed.';
comment on column notification.attempts.ended_at is 'When the outcome was recorded.';
comment on column notification.attempts.outcome is 'done, retry, snooze, dead, suppressed, or unknown if the holder crashed.';
comment on column notification.attempts.why is 'Reason of every outcome but done.';
comment on column notification.attempts.answer is 'Response of the channel.';

-- Preferences ----------------------------------------------------------------------------------------------------------
-- No row means the defaults, so neither adding a user nor reading the preferences writes one.

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
comment on column notification.preferences.updated_at is 'When the row last changed.';
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
comment on table notification.people is 'Discord users and, until they register, their preferences.';
comment on column notification.people.discord_id is 'Discord user id; the recipient_id of requests.';
comment on column notification.people.user_id is 'Registered user, whose preferences then apply.';
comment on column notification.people.locale is 'Language; NULL means that of the hub.';
comment on column notification.people.dm_enabled is 'Whether direct messages are sent at all.';
comment on column notification.people.payment_notifications is 'Payment notifications.';
comment on column notification.people.recovery_notifications is 'Recovery notifications.';
comment on column notification.people.antinuke_notifications is 'AntiNuke notifications other than emergencies, which are always sent.';
comment on column notification.people.marketing_notifications is 'Marketing notifications.';
comment on column notification.people.night_consent_at is 'When consent to marketing at night was given; without it, marketing waits for the morning.';
comment on column notification.people.created_at is 'When the person was added.';
comment on column notification.people.updated_at is 'When the row last changed.';
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
comment on table notification.person_tokens is 'Tokens with which a person reads their toasts and preferences.';
comment on column notification.person_tokens.token_hash is 'SHA-256 of the token in hex.';
comment on column notification.person_tokens.discord_id is 'Discord user id; the person need not have a row yet.';
comment on column notification.person_tokens.kind is 'link, or the cookie it was exchanged for.';
comment on column notification.person_tokens.issued_by is 'Service that requested the link.';
comment on column notification.person_tokens.created_at is 'When it was created.';
comment on column notification.person_tokens.expires_at is 'When it expires.';
comment on column notification.person_tokens.swapped_at is 'When the link was exchanged for a cookie.';
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
  constraint address_unhealthy_has_reason check ((unhealthy_since is null) = (reason is null))
);
comment on table notification.addresses is 'State of recipient addresses, learned by sending to them.';
comment on column notification.addresses.recipient_type is 'Recipient type.';
comment on column notification.addresses.recipient_id is 'Recipient id.';
comment on column notification.addresses.dm_channel_id is 'DM channel that Discord opened for the user; it is opened once.';
comment on column notification.addresses.unhealthy_since is 'Since when it permanently refuses messages; NULL means it works.';
comment on column notification.addresses.reason is 'Why it refused.';
comment on column notification.addresses.updated_at is 'When the row last changed.';
create index if not exists addresses_unhealthy_idx
  on notification.addresses (unhealthy_since desc, recipient_type, recipient_id)
  where unhealthy_since is not null;
drop trigger if exists update_addresses_updated_at on notification.addresses;
create trigger update_addresses_updated_at
  before update on notification.addresses
  for each row
  when (new.updated_at is not distinct from old.updated_at)
  execute function public.update_updated_at_column();

-- Toasts ---------------------------------------------------------------------------------------------------------------

create sequence if not exists notification.toast_changes;
comment on sequence notification.toast_changes is 'Numbers of toast changes, by which streams resume.';

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
comment on table notification.toasts is 'Inbox of the dashboard: one toast per request.';
comment on column notification.toasts.id is 'The request; a request creates one toast.';
comment on column notification.toasts.recipient_id is 'The Discord user id.';
comment on column notification.toasts.category is 'The template''s category.';
comment on column notification.toasts.criticality is 'The template''s criticality.';
comment on column notification.toasts.locale is 'Language of the text.';
comment on column notification.toasts.title is 'Rendered title.';
comment on column notification.toasts.body is 'Rendered text.';
comment on column notification.toasts.created_at is 'When it arrived.';
comment on column notification.toasts.seen_at is 'When it was displayed.';
comment on column notification.toasts.read_at is 'When it was read.';
comment on column notification.toasts.archived_at is 'When it was archived.';
comment on column notification.toasts.seq is 'Number of its newest change; a stream that resumes gets new toasts and changes made in other tabs.';
-- By created_at: a toast has the id of its request, which may be days older.
create index if not exists toasts_arrival_idx on notification.toasts (recipient_id, created_at desc, id desc);
create index if not exists toasts_unread_idx on notification.toasts (recipient_id) where read_at is null and archived_at is null;
create index if not exists toasts_changes_idx on notification.toasts (recipient_id, seq);

-- A sequence value is assigned before the transaction commits, so a lower one could become visible after a higher one, and
-- a stream that resumes after the higher one would miss it. So transactions that change toasts of one recipient take turns,
-- and the number is assigned under the lock.
create or replace function notification.lock_recipient_toasts() returns trigger
language plpgsql
set search_path = ''
as $$
begin
  perform pg_advisory_xact_lock(hashtextextended('toasts ' || new.recipient_id, 0));
  if tg_op = 'INSERT' then
    new.seq := nextval('notification.toast_changes');
  end if;
  return new;
end
$$;
comment on function notification.lock_recipient_toasts() is 'Serialises the changes of one recipient''s toasts, so that they are numbered in the order of commits.';
revoke all on function notification.lock_recipient_toasts() from public, anon, authenticated;

drop trigger if exists toasts_lock_insert on notification.toasts;
create trigger toasts_lock_insert
  before insert on notification.toasts
  for each row
  execute function notification.lock_recipient_toasts();

-- Triggers fire in the order of their names: this one before toasts_number_change.
drop trigger if exists toasts_lock_update on notification.toasts;
create trigger toasts_lock_update
  before update on notification.toasts
  for each row
  when ((old.seen_at, old.read_at, old.archived_at) is distinct from (new.seen_at, new.read_at, new.archived_at))
  execute function notification.lock_recipient_toasts();

create or replace function notification.number_toast_change() returns trigger
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
comment on function notification.number_toast_change() is 'Numbers the change, and marks a read toast as seen.';
revoke all on function notification.number_toast_change() from public, anon, authenticated;

drop trigger if exists toasts_number_change on notification.toasts;
create trigger toasts_number_change
  before update on notification.toasts
  for each row
  when ((old.seen_at, old.read_at, old.archived_at) is distinct from (new.seen_at, new.read_at, new.archived_at))
  execute function notification.number_toast_change();

-- Requests from SQL ----------------------------------------------------------------------------------------------------

create or replace function notification.first_invalid_variable(variables jsonb, payload jsonb) returns text
language sql immutable parallel safe
set search_path = ''
as $$
  select v.name
  from jsonb_each_text(variables) as v (name, type)
  where case v.type
      when 'text' then jsonb_typeof(payload -> v.name) is distinct from 'string'
      when 'integer' then
        case when jsonb_typeof(payload -> v.name) = 'number' then (payload ->> v.name)::numeric % 1 <> 0 else true end
      else jsonb_typeof(payload -> v.name) is distinct from v.type
    end
  order by v.name
  limit 1
$$;
comment on function notification.first_invalid_variable(jsonb, jsonb) is 'First variable that a payload lacks or has with another type; NULL if the payload is valid.';
revoke all on function notification.first_invalid_variable(jsonb, jsonb) from public, anon, authenticated;
grant execute on function notification.first_invalid_variable(jsonb, jsonb) to service_role;

create or replace function notification.request(
  recipient_type text,
  recipient_id text,
  template_key text,
  payload jsonb default '{}',
  guild_id uuid default null,
  scheduled_at timestamptz default null,
  expires_at timestamptz default null,
  dedupe_key text default null,
  locale text default null,
  incident text default null,
  event_id uuid default null,
  source_service text default null
) returns uuid
language plpgsql
-- Callers may request a notification; they may not read or write the table.
security definer
set search_path = ''
as $$
#variable_conflict use_column
declare
  template notification.templates;
  invalid text;
  request_id uuid;
begin
  select * into template from notification.templates t where t.key = request.template_key and t.retired_at is null;
  if not found then
    raise exception 'unknown template %', coalesce(request.template_key, 'NULL') using errcode = 'foreign_key_violation';
  end if;
  invalid := notification.first_invalid_variable(template.variables, request.payload);
  if invalid is not null then
    raise exception 'template % needs the variable % (%)', template.key, invalid, template.variables ->> invalid
      using errcode = 'check_violation', column = invalid;
  end if;

  -- Repeated only if the first request was purged between the two statements.
  loop
    insert into notification.requests as new (
      id, recipient_type, recipient_id, guild_id, template_key, payload, state, scheduled_at, priority,
      expires_at, dedupe_key, locale, incident, event_id, source_service
    ) values (
      pabal.uuid7(), request.recipient_type, request.recipient_id, request.guild_id, request.template_key, request.payload, 'pending',
      coalesce(request.scheduled_at, pabal.now()),
      case template.criticality when 'emergency' then 1 when 'important' then 3 else 5 end,
      request.expires_at, request.dedupe_key, request.locale, request.incident, request.event_id, request.source_service
    )
    on conflict (dedupe_key) where dedupe_key is not null do nothing
    returning new.id into request_id;
    if request_id is not null then
      -- Plain SQL does not notify after its commit as the hub does.
      perform pg_notify('pabal', 'notifications');
      return request_id;
    end if;
    select old.id into request_id from notification.requests as old where old.dedupe_key = request.dedupe_key;
    if request_id is not null then
      return request_id;
    end if;
  end loop;
end
$$;
comment on function notification.request(text, text, text, jsonb, uuid, timestamptz, timestamptz, text, text, text, uuid, text) is
  'Requests a notification in the caller''s transaction and returns its id. Using a dedupe key again returns the first request''s id.';
revoke all on function notification.request(text, text, text, jsonb, uuid, timestamptz, timestamptz, text, text, text, uuid, text)
  from public, anon, authenticated;
grant execute on function notification.request(text, text, text, jsonb, uuid, timestamptz, timestamptz, text, text, text, uuid, text)
  to service_role, pabal_publisher;

-- Privileges -----------------------------------------------------------------------------------------------------------

alter table notification.templates enable row level security;
drop policy if exists "templates_service_role_all" on notification.templates;
create policy "templates_service_role_all" on notification.templates for all to service_role using (true) with check (true);
revoke all on table notification.templates from public, anon, authenticated;
grant select, insert, update, delete on table notification.templates to service_role;

alter table notification.rules enable row level security;
drop policy if exists "rules_service_role_all" on notification.rules;
create policy "rules_service_role_all" on notification.rules for all to service_role using (true) with check (true);
revoke all on table notification.rules from public, anon, authenticated;
grant select, insert, update, delete on table notification.rules to service_role;

alter table notification.requests enable row level security;
drop policy if exists "requests_service_role_all" on notification.requests;
create policy "requests_service_role_all" on notification.requests for all to service_role using (true) with check (true);
revoke all on table notification.requests from public, anon, authenticated;
grant select, insert, update, delete on table notification.requests to service_role;

alter table notification.attempts enable row level security;
drop policy if exists "attempts_service_role_all" on notification.attempts;
create policy "attempts_service_role_all" on notification.attempts for all to service_role using (true) with check (true);
revoke all on table notification.attempts from public, anon, authenticated;
grant select, insert on table notification.attempts to service_role;

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

revoke all on sequence notification.toast_changes from public, anon, authenticated;
grant usage on sequence notification.toast_changes to service_role;

alter table notification.toasts enable row level security;
drop policy if exists "toasts_service_role_all" on notification.toasts;
create policy "toasts_service_role_all" on notification.toasts for all to service_role using (true) with check (true);
revoke all on table notification.toasts from public, anon, authenticated;
grant select, insert, update, delete on table notification.toasts to service_role;
