create or replace function pabal.sync_event_lane() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
begin
  if old.lease is not null then
    if new.status = old.status then
      return new;  -- still held; the changes take effect when the event is due again
    end if;
    update pabal.event_leases set held = held - 1 where id = old.lease;
    new.lease := null;
  end if;
  delete from pabal.event_due where id = new.id;
  if new.status in ('pending', 'processing') and new.target_service is not null and new.ordering_key is not null then
    insert into pabal.event_order (service, ordering_key, seq, id)
    values (new.target_service, new.ordering_key, new.seq, new.id)
    on conflict (id) do update set service = excluded.service, lease = null;
  end if;
  if new.status = 'pending' and new.target_service is not null then
    insert into pabal.event_due (id, service, priority, due_at, seq, ordering_key, expires_at, is_retry, event_type)
    select new.id, new.target_service, new.priority, coalesce(new.next_retry_at, pabal.now()), new.seq, new.ordering_key,
           new.expires_at, new.retry_count > 0, new.event_type
    where new.ordering_key is null
      or new.seq = (
        select o.seq from pabal.event_order o
        where o.service = new.target_service and o.ordering_key = new.ordering_key
        order by o.seq
        limit 1
      );
  end if;
  return new;
end
$$;

drop table if exists pabal.plain_claims;
