-- name: find_recipient_details
-- The language of a registered user is that of the linked account.
select p.locale, a.dm_channel_id, pabal.now() as now
from (values (:recipient::text)) as w (recipient_id)
left join notification.people p on p.discord_id = coalesce(
    (
        select q.discord_id from notification.people q
        where q.user_id
            = case when w.recipient_id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then w.recipient_id::uuid end
    ),
    w.recipient_id
)
left join notification.addresses a on a.recipient_type = 'user_dm' and a.recipient_id = w.recipient_id;
