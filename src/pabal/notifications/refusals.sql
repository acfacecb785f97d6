-- name: list_unhealthy_addresses
select a.recipient_type, a.recipient_id, a.unhealthy_since, a.reason
from notification.addresses a
where a.unhealthy_since is not null
order by a.unhealthy_since desc, a.recipient_type, a.recipient_id
limit :limit;
