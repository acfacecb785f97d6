drop index if exists public.idx_event_queue_correlation_id;
drop index if exists public.idx_event_queue_keyed;
drop function if exists pabal.publish(text, text, jsonb, text, integer, integer, timestamptz, timestamptz, text, text, text, text);
drop function if exists pabal.content_hash(text, text, jsonb, integer, integer, timestamptz, timestamptz, text);

create or replace function pabal.enqueue_inserted_events() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
begin
  insert into pabal.event_order (service, ordering_key, seq, id)
  select a.target_service, a.ordering_key, a.seq, a.id
  from arrived a
  where a.status = 'pending' and a.target_service is not null and a.ordering_key is not null;

  insert into pabal.event_due (id, service, priority, due_at, seq, ordering_key, expires_at, is_retry)
  select a.id, a.target_service, a.priority, coalesce(a.next_retry_at, pabal.now()), a.seq, a.ordering_key, a.expires_at, a.retry_count > 0
  from arrived a
  where a.status = 'pending' and a.target_service is not null
    and (
      a.ordering_key is null
      or a.seq = (  -- written so that it is one step in the key's index, however long the line
        select l.seq from pabal.event_order l
        where l.service = a.target_service and l.ordering_key = a.ordering_key
        order by l.seq
        limit 1
      )
    );
  return null;
end
$$;
comment on function pabal.enqueue_inserted_events() is 'Owes new pending events to their targets; of a line only the head is due.';

drop trigger if exists event_queue_complete_broadcast on public.event_queue;
drop function if exists pabal.complete_broadcast();
alter table public.event_queue drop column if exists is_broadcast;
drop table if exists pabal.subscriptions;
drop function if exists pabal.are_event_patterns(text[]);
drop function if exists pabal.like_patterns(text[]);
