-- name: lock_inboxes
-- The table's trigger takes the same locks, one by one. Taken here first, all at once, they cannot deadlock.
select pabal.lock_names('toasts', :recipients::text[]);

-- name: insert_toasts
-- The toast has the notification's id, so it is inserted at most once.
insert into notification.toasts (id, recipient_id, category, criticality, locale, title, body)
select r.id, r.recipient_id, t.category, t.criticality, coalesce(a.locale, r.locale, p.locale, 'ko'), a.title, a.body
from unnest(:ids::uuid[], :locales::text[], :titles::text[], :bodies::text[]) as a (id, locale, title, body)
join notification.requests r on r.id = a.id and r.recipient_type = 'dashboard_toast'
join notification.templates t on t.key = r.template_key
left join notification.people p on p.discord_id = r.recipient_id
order by r.id
on conflict (id) do nothing
returning id, recipient_id;

-- name: list_toasts
select id, category, criticality, locale, title, body, created_at, seen_at, read_at, archived_at, seq,
       pabal.now() - created_at as age
from notification.toasts
where recipient_id = :recipient and (archived_at is not null) = :archived
  and (:before::timestamptz is null or (created_at, id) < (:before, :before_id::uuid))
order by created_at desc, id desc
limit :limit;

-- name: read_inbox_state
select
    (
        select count(*) from notification.toasts
        where recipient_id = :recipient and read_at is null and archived_at is null
    ) as unread,
    coalesce((select max(seq) from notification.toasts where recipient_id = :recipient), 0) as last_seq;

-- name: mark_toast
update notification.toasts
set seen_at = coalesce(seen_at, pabal.now()),
    read_at = case when :action = 'read' then coalesce(read_at, pabal.now()) else read_at end,
    archived_at = case when :action = 'archive' then coalesce(archived_at, pabal.now()) else archived_at end
where recipient_id = :recipient and id = :id
returning id, category, criticality, locale, title, body, created_at, seen_at, read_at, archived_at, seq,
          pabal.now() - created_at as age;

-- name: mark_all_read
update notification.toasts
set read_at = pabal.now()
where recipient_id = :recipient and read_at is null and archived_at is null;

-- name: list_changes
-- The changes of many inboxes in one query, each after its own number. Unread toasts are counted once per changed inbox.
with changed as materialized (
    select t.*
    from unnest(:recipients::text[], :lasts::bigint[]) as w (recipient_id, last)
    cross join lateral (
        select * from notification.toasts t
        where t.recipient_id = w.recipient_id and t.seq > w.last
        order by t.seq
        limit :limit
    ) t
),
counted as materialized (
    select w.recipient_id, (
               select count(*) from notification.toasts n
               where n.recipient_id = w.recipient_id and n.read_at is null and n.archived_at is null
           ) as unread
    from (select distinct recipient_id from changed) w
)
select t.*, pabal.now() - t.created_at as age, c.unread
from changed t
join counted c on c.recipient_id = t.recipient_id
order by t.seq;
