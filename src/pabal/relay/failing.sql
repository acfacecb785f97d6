-- name: list_failing_channels
-- By the events each failure published: those of one source are found by their time.
select split_part(e.payload ->> 'conversation_key', ':', 1) as channel, count(*) as failed
from public.event_queue e
where e.source_service = 'hub' and e.created_at > pabal.now() - :span::interval
  and e.event_type = 'relay.callback.failed' and e.parent_id is null
group by 1
having count(*) >= :least
order by 1;
