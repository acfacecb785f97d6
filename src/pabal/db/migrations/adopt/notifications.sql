-- name: conflict_template_keys
-- Template keys are parts of lower case letters, digits and underscores, separated by dots.
select count(*), min(r.template_key) from existing.requests r where r.template_key !~ '^[a-z0-9_]+(\.[a-z0-9_]+)*$';

-- name: conflict_recipients
-- A request names its recipient.
select count(*), min(r.id::text) from existing.requests r where r.recipient_id = '';

-- name: conflict_payloads
-- The payload of a request is a JSON object.
select count(*), min(r.id::text) from existing.requests r where jsonb_typeof(r.payload) <> 'object';

-- name: rule_templates
-- Templates of requests are registered as retired, until the hub starts with templates of the same names.
select count(distinct r.template_key) from existing.requests r;

-- name: rule_attempts
-- Attempts are counted from 0 to 3.
select count(*) from existing.requests r where r.attempt_count not between 0 and 3;

-- name: rule_sent_times
-- Sent requests without sent_at get scheduled_at; the others lose it.
select count(*) from existing.requests r where (r.state = 'sent') <> (r.sent_at is not null);

-- name: rule_failed
-- Failed requests end with the reason exhausted, when they were last scheduled; those without an error get Unknown error.
select count(*) from existing.requests r where r.state = 'failed';

-- name: rule_suppressed
-- Suppressed requests end with the reason category_off, when they were scheduled: the specification suppresses by preferences only.
select count(*) from existing.requests r where r.state = 'suppressed';

-- name: copy_templates
insert into notification.templates (key, category, texts, checksum, retired_at)
select distinct r.template_key,
       case when split_part(r.template_key, '.', 1) in ('payment', 'recovery', 'antinuke', 'marketing')
            then split_part(r.template_key, '.', 1) else 'system' end,
       '{}'::jsonb, 'adopted', pabal.now()
from existing.requests r
on conflict (key) do nothing;

-- name: copy_requests
-- Only pending emergencies get their priority: a failed one would raise an alarm now.
insert into notification.requests (
  id, recipient_type, recipient_id, guild_id, template_key, payload, state, attempt_count, last_error, scheduled_at, sent_at,
  created_at, priority, requested_by, reason, ended_at
)
select r.id, r.recipient_type, r.recipient_id, r.guild_id, r.template_key, r.payload, r.state,
       least(greatest(r.attempt_count, 0), 3),
       case when r.state = 'failed' then coalesce(nullif(r.last_error, ''), 'Unknown error') else r.last_error end,
       r.scheduled_at, case when r.state = 'sent' then coalesce(r.sent_at, r.scheduled_at) end, r.created_at,
       case when r.state = 'pending' and r.template_key like 'antinuke.%' then 1 else 5 end, 'adopted',
       case r.state when 'failed' then 'exhausted' when 'suppressed' then 'category_off' end,
       case r.state when 'pending' then null when 'sent' then coalesce(r.sent_at, r.scheduled_at) else r.scheduled_at end
from existing.requests r;

-- name: copy_preferences
insert into notification.preferences (
  user_id, dm_enabled, payment_notifications, recovery_notifications, antinuke_notifications, marketing_notifications, updated_at
)
select p.user_id, p.dm_enabled, p.payment_notifications, p.recovery_notifications, p.antinuke_notifications,
       p.marketing_notifications, p.updated_at
from existing.preferences p;
