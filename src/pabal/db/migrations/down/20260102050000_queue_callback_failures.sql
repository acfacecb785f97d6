-- Publish what is still in the outbox: it happened.
select pabal.publish('hub', o.event_type, o.payload) from (select * from pabal.relay_event_outbox order by id) o;

drop table if exists pabal.relay_event_outbox;
