-- name: list_recipient_profiles
-- For a linked person notification.preferences applies; as long as it has no row, notification.people does. A recipient
-- may also be the id of a registered user; consent and language are then those of the linked account. A link that the sending service asserts only turns off more.
select w.recipient_id, w.source,
       coalesce(u.dm_enabled, p.dm_enabled, true) and coalesce(s.dm_enabled, true) as dm_enabled,
       coalesce(u.payment_notifications, p.payment_notifications, true) and coalesce(s.payment_notifications, true) as payment_notifications,
       coalesce(u.recovery_notifications, p.recovery_notifications, true) and coalesce(s.recovery_notifications, true) as recovery_notifications,
       coalesce(u.antinuke_notifications, p.antinuke_notifications, true) and coalesce(s.antinuke_notifications, true) as antinuke_notifications,
       coalesce(u.marketing_notifications, p.marketing_notifications, true) and coalesce(s.marketing_notifications, true) as marketing_notifications,
       p.night_consent_at,
       case
           when p.user_id is not null or u.user_id is not null then 'user'
           when l.user_id is not null then 'service_link'
           else 'account'
       end as decided_by,
       array(
           select a.recipient_type
           from unnest('{user_dm,guild_audit_channel,dashboard_toast}'::text[]) t (type)
           join notification.addresses a on a.recipient_type = t.type and a.recipient_id = w.recipient_id
           where a.unhealthy_since is not null
       ) as unhealthy
from unnest(:ids::text[], :sources::text[]) as w (recipient_id, source)
cross join lateral (
    select case when w.recipient_id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then w.recipient_id::uuid end as user_id
) r
left join notification.people p on p.discord_id = coalesce(
    (select q.discord_id from notification.people q where q.user_id = r.user_id), w.recipient_id
)
left join notification.preferences u on u.user_id = coalesce(p.user_id, r.user_id)
left join notification.service_links l
    on l.service_name = w.source and l.discord_id = w.recipient_id and p.user_id is null
left join notification.preferences s on s.user_id = l.user_id;

-- name: get_preference
-- The seed's GetPreference. Never writes; without a row the defaults apply.
select :user::uuid as user_id, p.discord_id,
       coalesce(u.dm_enabled, p.dm_enabled, true) as dm_enabled,
       coalesce(u.payment_notifications, p.payment_notifications, true) as payment_notifications,
       coalesce(u.recovery_notifications, p.recovery_notifications, true) as recovery_notifications,
       coalesce(u.antinuke_notifications, p.antinuke_notifications, true) as antinuke_notifications,
       coalesce(u.marketing_notifications, p.marketing_notifications, true) as marketing_notifications,
       p.night_consent_at, p.locale, coalesce(u.updated_at, p.updated_at) as updated_at, p.linked_at, p.linked_by
from (values (:user::uuid)) w (user_id)
left join notification.preferences u on u.user_id = w.user_id
left join notification.people p on p.user_id = w.user_id;

-- name: get_person
select p.user_id, p.discord_id,
       coalesce(u.dm_enabled, p.dm_enabled) as dm_enabled,
       coalesce(u.payment_notifications, p.payment_notifications) as payment_notifications,
       coalesce(u.recovery_notifications, p.recovery_notifications) as recovery_notifications,
       coalesce(u.antinuke_notifications, p.antinuke_notifications) as antinuke_notifications,
       coalesce(u.marketing_notifications, p.marketing_notifications) as marketing_notifications,
       p.night_consent_at, p.locale, greatest(u.updated_at, p.updated_at) as updated_at, p.linked_at, p.linked_by
from notification.people p
left join notification.preferences u on u.user_id = p.user_id
where p.discord_id = :discord;

-- name: upsert_preference
-- The seed's UpsertPreference.
insert into notification.preferences (
    user_id, dm_enabled, payment_notifications, recovery_notifications, antinuke_notifications, marketing_notifications
) values (
    :user, :dm_enabled, :payment_notifications, :recovery_notifications, :antinuke_notifications, :marketing_notifications
)
on conflict (user_id) do update
set dm_enabled = excluded.dm_enabled,
    payment_notifications = excluded.payment_notifications,
    recovery_notifications = excluded.recovery_notifications,
    antinuke_notifications = excluded.antinuke_notifications,
    marketing_notifications = excluded.marketing_notifications,
    updated_at = pabal.now();

-- name: upsert_person
-- Night consent keeps the time it was first given. Withdrawn, it is null again.
insert into notification.people as p (
    discord_id, dm_enabled, payment_notifications, recovery_notifications, antinuke_notifications, marketing_notifications,
    night_consent_at, locale
) values (
    :discord, :dm_enabled, :payment_notifications, :recovery_notifications, :antinuke_notifications, :marketing_notifications,
    case when :consent::boolean then pabal.now() end, :locale::text
)
on conflict (discord_id) do update
set dm_enabled = excluded.dm_enabled,
    payment_notifications = excluded.payment_notifications,
    recovery_notifications = excluded.recovery_notifications,
    antinuke_notifications = excluded.antinuke_notifications,
    marketing_notifications = excluded.marketing_notifications,
    night_consent_at = case
        when :consent is null then p.night_consent_at
        when :consent then coalesce(p.night_consent_at, pabal.now())
    end,
    locale = coalesce(:locale, p.locale),
    updated_at = pabal.now();

-- name: link_person
update notification.people
set user_id = :user, linked_at = pabal.now(), linked_by = :by
where discord_id = :discord;

-- name: unlink_person
update notification.people
set user_id = null, linked_at = null, linked_by = null
where discord_id = :discord;

-- name: lock_owner
-- By name, because there may be no row yet.
select pabal.lock_names(:kind, array[:owner::text]);
