-- name: find_recipient_details
select p.locale, a.dm_channel_id, pabal.now() as now
from (values (:recipient::text)) as w (recipient_id)
left join notification.people p on p.discord_id = w.recipient_id
left join notification.addresses a on a.recipient_type = 'user_dm' and a.recipient_id = w.recipient_id;
