-- name: count_person_data
select
    (
        select count(*) from notification.requests r
        where r.recipient_type in ('user_dm', 'dashboard_toast') and r.recipient_id = :person
    ) as requests,
    (select count(*) from notification.toasts t where t.recipient_id = :person) as toasts,
    (select count(*) from notification.people p where p.discord_id = :person)
    + (
        select count(*) from notification.preferences u
        join notification.people p on p.user_id = u.user_id
        where p.discord_id = :person
    )
    + (select count(*) from notification.person_tokens t where t.discord_id = :person)
    + (
        select count(*) from notification.person_tokens t
        join notification.people p on p.user_id = t.user_id
        where p.discord_id = :person
    )
    + (select count(*) from notification.service_links l where l.discord_id = :person)
    + (select count(*) from notification.link_requests r where r.discord_id = :person)
    + (
        select count(*) from notification.addresses a
        where a.recipient_type in ('user_dm', 'dashboard_toast') and a.recipient_id = :person
    )
    as others;

-- name: lock_requests
-- In id order, as when settling, to avoid deadlocks.
select r.id
from notification.requests r
where r.recipient_type in ('user_dm', 'dashboard_toast') and r.recipient_id = :person
order by r.id
for update;

-- name: delete_requests
-- Attempts and toasts are deleted by cascade.
delete from notification.requests where id = any(:ids::uuid[]);

-- name: delete_alerts
-- Operator alerts about notifications that did not reach the person.
delete from notification.requests r
where r.template_key = 'system.undelivered'
  and r.payload ->> 'recipient' in ('user_dm ' || :person, 'dashboard_toast ' || :person);

-- name: delete_limits
-- Limits of the person, and of the DM channel they are reached in.
select pabal.delete_limits_of(array[
    :person,
    (select a.dm_channel_id from notification.addresses a where a.recipient_type = 'user_dm' and a.recipient_id = :person)
]);

-- name: delete_preferences
delete from notification.preferences u
where u.user_id = (select p.user_id from notification.people p where p.discord_id = :person);

-- name: delete_person
delete from notification.people where discord_id = :person;

-- name: delete_addresses
delete from notification.addresses where recipient_type in ('user_dm', 'dashboard_toast') and recipient_id = :person;

-- name: delete_tokens
-- Before the person's row: it names the user whose tokens act as this account.
delete from notification.person_tokens t
where t.discord_id = :person or t.user_id = (select p.user_id from notification.people p where p.discord_id = :person);

-- name: delete_service_links
delete from notification.service_links where discord_id = :person;

-- name: delete_link_requests
delete from notification.link_requests where discord_id = :person;

-- name: export_time
select to_jsonb(pabal.now());

-- name: export_person
-- Whole rows, so that a new column is exported without a change here. Credentials are removed.
select to_jsonb(p) from notification.people p where p.discord_id = :person;

-- name: export_preferences
select to_jsonb(u)
from notification.preferences u
join notification.people p on p.user_id = u.user_id
where p.discord_id = :person;

-- name: export_requests
select to_jsonb(r) - '{lease,leased_until,content_hash}'::text[]
       || jsonb_build_object(
           'attempts', coalesce(
               (select jsonb_agg(to_jsonb(a) - '{lease}'::text[] order by a.id) from notification.attempts a where a.request_id = r.id),
               '[]'
           )
       )
from notification.requests r
where r.recipient_type in ('user_dm', 'dashboard_toast') and r.recipient_id = :person
order by r.created_at, r.id;

-- name: export_toasts
select to_jsonb(t) from notification.toasts t where t.recipient_id = :person order by t.created_at, t.id;

-- name: export_addresses
select to_jsonb(a)
from notification.addresses a
where a.recipient_type in ('user_dm', 'dashboard_toast') and a.recipient_id = :person;

-- name: export_tokens
-- Like delete_tokens: those of the user whose tokens act as this account too.
select to_jsonb(t) - '{token_hash}'::text[]
from notification.person_tokens t
where t.discord_id = :person or t.user_id = (select p.user_id from notification.people p where p.discord_id = :person)
order by t.created_at;

-- name: export_service_links
select to_jsonb(l) from notification.service_links l where l.discord_id = :person order by l.created_at;

-- name: export_link_requests
select to_jsonb(r) - '{code_hash,session_hash}'::text[] from notification.link_requests r where r.discord_id = :person order by r.created_at;

-- name: export_audit_entries
select a.entry from pabal.audit_entries_about(:pseudonym, include_own => true) a order by a.id;
