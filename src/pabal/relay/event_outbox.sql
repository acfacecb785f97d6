-- name: publish_queued_events
with moved as materialized (
    delete from pabal.relay_event_outbox o
    where o.id in (select w.id from pabal.relay_event_outbox w order by w.id limit :batch for update skip locked)
    returning o.id, o.event_type, o.payload
),
published as materialized (
    select pabal.publish('hub', m.event_type, m.payload) from (select * from moved order by id) m
)
select count(*) from published;
