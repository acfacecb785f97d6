-- name: insert_ticket
insert into notification.stream_tickets (ticket_hash, token_hash, origin, created_at, expires_at)
values (:ticket_hash, :token_hash, :origin, pabal.now(), pabal.now() + :life::interval)
returning expires_at;

-- name: use_ticket
-- Concurrent uses of one ticket wait for the first, and then match no row. The person's token must still be valid.
with used as (
    delete from notification.stream_tickets
    where ticket_hash = :ticket_hash and origin = :origin and expires_at > pabal.now()
    returning token_hash
)
select coalesce(p.discord_id, t.discord_id) as id, t.token_hash, t.user_id
from used u
join notification.person_tokens t on t.token_hash = u.token_hash and t.swapped_at is null and t.expires_at > pabal.now()
left join notification.people p on p.user_id = t.user_id;

-- name: purge_expired_tickets
delete from notification.stream_tickets
where ticket_hash in (select ticket_hash from notification.stream_tickets where expires_at <= pabal.now() limit :batch);
