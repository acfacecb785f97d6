-- Notices to people: the templates they are written from, the requests to send them, and every attempt at it.

do $$
declare
  role text;
begin
  if to_regnamespace('notification') is null then
    create schema notification;
    comment on schema notification is 'Notices to people.';
    insert into pabal.made (kind, name) values ('schema', 'notification');
  end if;
  foreach role in array array['service_role', 'pabal_publisher'] loop
    if not has_schema_privilege(role, 'notification', 'usage') then
      execute format('grant usage on schema notification to %I', role);
      insert into pabal.made (kind, name) values ('usage', role || ' on notification');
    end if;
  end loop;

  -- Guilds belong to another system; without it, this is as much of them as a request refers to.
  if to_regnamespace('guild') is null then
    create schema guild;
    comment on schema guild is 'Guilds, as little of them as notices refer to.';
    grant usage on schema guild to service_role;
    insert into pabal.made (kind, name) values ('schema', 'guild');
  end if;
  if to_regclass('guild.guilds') is null then
    create table guild.guilds (
      id uuid primary key default gen_random_uuid(),
      created_at timestamptz not null default pabal.now()
    );
    comment on table guild.guilds is 'Guilds that notices are about.';
    comment on column guild.guilds.id is 'The guild.';
    comment on column guild.guilds.created_at is 'When it was added.';
    alter table guild.guilds enable row level security;
    create policy "guilds_service_role_all" on guild.guilds for all to service_role using (true) with check (true);
    revoke all on table guild.guilds from public, anon, authenticated;
    grant select, insert, update, delete on table guild.guilds to service_role;
    insert into pabal.made (kind, name) values ('table', 'guild.guilds');
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
comment on table notification.templates is 'The templates the code defines, as registered at its start: a request can name no other.';
comment on column notification.templates.key is 'Its name, such as payment.succeeded.';
comment on column notification.templates.category is 'payment, recovery, antinuke, marketing or system: which preference rules it.';
comment on column notification.templates.criticality is 'normal, important or emergency; an emergency passes the preferences.';
comment on column notification.templates.variables is 'Name to type: text, integer, number, boolean; a payload must bring each.';
comment on column notification.templates.texts is 'Channel to locale to text.';
comment on column notification.templates.version is 'Counts its changes.';
comment on column notification.templates.checksum is 'Of the file it was read from: equal means unchanged.';
comment on column notification.templates.registered_at is 'When this version was registered.';
comment on column notification.templates.retired_at is 'When the code stopped defining it; old requests still name it.';

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
  constraint rule_event_pattern_form check (event_pattern ~ '^(\*|[a-z0-9_]+)(\.(\*|[a-z0-9_]+))*$'),
  constraint rule_recipients_array check (jsonb_typeof(recipients) = 'array' and recipients <> '[]'),
  constraint rule_channels_known check (
    cardinality(channels) > 0 and channels <@ array['user_dm', 'guild_audit_channel', 'dashboard_toast']
  ),
  constraint rule_variables_object check (jsonb_typeof(variables) = 'object'),
  constraint rule_expires_later check (expires_after > interval '0')
);
comment on table notification.rules is 'Which events make which requests.';
comment on column notification.rules.id is 'The rule.';
comment on column notification.rules.name is 'What people call it.';
comment on column notification.rules.event_pattern is 'The event types it wants; * stands for one part, or at the end for the rest.';
comment on column notification.rules.template_key is 'What is written.';
comment on column notification.rules.recipients is 'Paths into the payload that name the recipients.';
comment on column notification.rules.channels is 'The recipient types a request is made for.';
comment on column notification.rules.variables is 'Template variable to payload path; one that is not named is taken by its own name.';
comment on column notification.rules.guild_path is 'The path to the guild, where there is one.';
comment on column notification.rules.expires_after is 'How long its requests are worth sending.';
comment on column notification.rules.is_active is 'Whether it makes requests.';
comment on column notification.rules.created_by is 'Who made it.';
comment on column notification.rules.created_at is 'When it was made.';
comment on column notification.rules.updated_at is 'When it last changed.';
create index if not exists rules_template_idx on notification.rules (template_key);
drop trigger if exists update_rules_updated_at on notification.rules;
create trigger update_rules_updated_at
  before update on notification.rules
  for each row
  when (new.updated_at is not distinct from old.updated_at)
  execute function public.update_updated_at_column();

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
  constraint request_recipient_named check (recipient_id <> ''),
  constraint request_payload_object check (jsonb_typeof(payload) = 'object'),
  constraint request_attempts check (attempt_count between 0 and 3),
  constraint request_sent_says_when check ((state = 'sent') = (sent_at is not null)),
  constraint request_ended_says_when check ((state = 'pending') = (ended_at is null)),
  constraint request_failed_says_what check (state <> 'failed' or coalesce(last_error, '') <> ''),
  -- coalesce: a CHECK that comes out NULL would let a missing reason pass.
  constraint request_says_why check (
    case state
      when 'suppressed' then coalesce(reason in (
        'dm_disabled', 'category_off', 'duplicate', 'address_unhealthy', 'expired', 'storm', 'cancelled'
      ), false)
      when 'failed' then coalesce(reason in ('exhausted', 'refused', 'unknown', 'unrenderable'), false)
      else reason is null
    end
  ),
  -- In flight is a lease, not a state.
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
comment on column notification.requests.created_at is 'When it was asked for.';
comment on column notification.requests.priority is 'From the template''s criticality: 1 emergency, 3 important, 5 normal.';
comment on column notification.requests.expires_at is 'After this it is not worth sending; empty means always.';
comment on column notification.requests.locale is 'The language asked for; empty means the recipient''s.';
comment on column notification.requests.dedupe_key is 'What makes a second request the same one: event, rule, recipient, channel.';
comment on column notification.requests.incident is 'What makes two emergencies one incident, for the storm guard.';
comment on column notification.requests.event_id is 'The event that made it; the event may be gone.';
comment on column notification.requests.rule_id is 'The rule that made it; the rule may be gone.';
comment on column notification.requests.source_service is 'The service that asked.';
comment on column notification.requests.requested_by is 'Who asked: a service, a rule, the hub, or a database login.';
comment on column notification.requests.idempotency_key is 'The caller''s key, unique within its service.';
comment on column notification.requests.content_hash is 'Of what came with that key: other content is a conflict.';
comment on column notification.requests.correlation_id is 'What the caller calls the whole story.';
comment on column notification.requests.lease is 'The fence: whoever lost it settles nothing.';
comment on column notification.requests.leased_until is 'When it falls due again by itself.';
comment on column notification.requests.held_by is 'The worker that holds it, or held it last.';
comment on column notification.requests.nonce is 'What Discord tells a repeat by: the same at every attempt, at most 25 characters.';
comment on column notification.requests.decision is 'Why it is sent or not, step by step.';
comment on column notification.requests.reason is 'Why it was suppressed or failed.';
comment on column notification.requests.ended_at is 'When it was sent, failed or suppressed.';

create index if not exists requests_state_scheduled_idx on notification.requests (state, scheduled_at) where state = 'pending';
create index if not exists requests_guild_created_idx on notification.requests (guild_id, created_at desc);
create index if not exists requests_recipient_idx on notification.requests (recipient_type, recipient_id, created_at desc);
-- The claim's: of each priority the due ones, whatever lies in the future. The lease is not in it, so claiming is HOT.
create index if not exists requests_due_idx on notification.requests (priority, scheduled_at) where state = 'pending';
create index if not exists requests_expiry_idx on notification.requests (expires_at) where state = 'pending' and expires_at is not null;
-- The purge: by the end, so that nothing pending or planned is ever deleted.
create index if not exists requests_ended_idx on notification.requests (ended_at) where ended_at is not null;
-- What died and waits for a person: counted every second, listed by the end.
create index if not exists requests_failed_idx on notification.requests (ended_at) where state = 'failed';
create unique index if not exists requests_dedupe_key on notification.requests (dedupe_key) where dedupe_key is not null;
create unique index if not exists requests_idempotency_key on notification.requests (source_service, idempotency_key)
  where idempotency_key is not null;
create index if not exists requests_event_idx on notification.requests (event_id) where event_id is not null;

-- The seed's plain MarkSent and MarkFailed name no end; it is filled in here. What they must say themselves, when it was
-- sent or what failed, is left to the checks.
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
comment on function notification.settle_request() is 'Completes a request whose state was set by a statement that named no end.';
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
  constraint attempt_says_why check (outcome = 'done' or why is not null)
);
comment on table notification.attempts is 'Every claim of a request and what came of it; rows are only ever added.';
comment on column notification.attempts.id is 'In the order they ended.';
comment on column notification.attempts.request_id is 'What was attempted.';
comment on column notification.attempts.lease is 'The lease it was attempted under: one row each.';
comment on column notification.attempts.attempt is 'The attempt_count it left; a snooze leaves it as it was.';
comment on column notification.attempts.worker is 'Who tried.';
comment on column notification.attempts.started_at is 'When it was claimed.';
comment on column notification.attempts.ended_at is 'When the outcome was recorded.';
comment on column notification.attempts.outcome is 'done, retry, snooze, dead, suppressed, or unknown: its holder never came back to say.';
comment on column notification.attempts.why is 'The reason, for every outcome but done.';
comment on column notification.attempts.answer is 'What the channel answered.';

-- The SQL door ---------------------------------------------------------------------------------------------------------

create or replace function notification.wrong_variable(variables jsonb, payload jsonb) returns text
language sql immutable parallel safe
set search_path = ''
as $$
  select wanted.name
  from jsonb_each_text(variables) as wanted (name, type)
  where case wanted.type
      when 'text' then jsonb_typeof(payload -> wanted.name) is distinct from 'string'
      when 'integer' then
        case when jsonb_typeof(payload -> wanted.name) = 'number' then (payload ->> wanted.name)::numeric % 1 <> 0 else true end
      else jsonb_typeof(payload -> wanted.name) is distinct from wanted.type
    end
  order by wanted.name
  limit 1
$$;
comment on function notification.wrong_variable(jsonb, jsonb) is 'The first variable a payload lacks or brings with another type; NULL when it brings them all.';
revoke all on function notification.wrong_variable(jsonb, jsonb) from public, anon, authenticated;
grant execute on function notification.wrong_variable(jsonb, jsonb) to service_role;

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
-- Callers may ask for a notice; they may not read or write the table.
security definer
set search_path = ''
as $$
#variable_conflict use_column
declare
  template notification.templates;
  wrong text;
  made uuid;
begin
  select * into template from notification.templates as known where known.key = request.template_key and known.retired_at is null;
  if not found then
    raise exception 'unknown template %', coalesce(request.template_key, 'NULL') using errcode = 'foreign_key_violation';
  end if;
  wrong := notification.wrong_variable(template.variables, request.payload);
  if wrong is not null then
    raise exception 'template % needs the variable % (%)', template.key, wrong, template.variables ->> wrong
      using errcode = 'check_violation', column = wrong;
  end if;

  -- More than once only when the first request was purged between the two statements.
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
    returning new.id into made;
    if made is not null then
      -- Plain SQL has nobody to ring for it after its commit.
      perform pg_notify('pabal', 'notifications');
      return made;
    end if;
    select old.id into made from notification.requests as old where old.dedupe_key = request.dedupe_key;
    if made is not null then
      return made;
    end if;
  end loop;
end
$$;
comment on function notification.request(text, text, text, jsonb, uuid, timestamptz, timestamptz, text, text, text, uuid, text) is
  'Asks for a notice in the caller''s own transaction; a dedupe key already used names the first request.';
revoke all on function notification.request(text, text, text, jsonb, uuid, timestamptz, timestamptz, text, text, text, uuid, text)
  from public, anon, authenticated;
grant execute on function notification.request(text, text, text, jsonb, uuid, timestamptz, timestamptz, text, text, text, uuid, text)
  to service_role, pabal_publisher;

-- Who may --------------------------------------------------------------------------------------------------------------

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
