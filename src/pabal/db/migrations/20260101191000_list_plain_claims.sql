-- Events that plain SQL set to `processing`, one narrow row each, so that the chore that returns them reads only these. The BRIN
-- index of the status cannot find them: every range of pages has had an event in `processing`.

create table if not exists pabal.plain_claims (
  id uuid primary key
);
comment on table pabal.plain_claims is 'Events that plain SQL set to processing. Kept by a trigger of public.event_queue.';
comment on column pabal.plain_claims.id is 'The event.';

alter table pabal.plain_claims enable row level security;
drop policy if exists "plain_claims_service_role_all" on pabal.plain_claims;
create policy "plain_claims_service_role_all" on pabal.plain_claims for all to service_role using (true) with check (true);
revoke all on table pabal.plain_claims from public, anon, authenticated;
grant select, insert, update, delete on table pabal.plain_claims to service_role;

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
  if new.status = 'processing' then  -- by plain SQL: a claim of the hub sets a lease
    insert into pabal.plain_claims (id) values (new.id) on conflict do nothing;
  elsif old.status = 'processing' then
    delete from pabal.plain_claims where id = new.id;
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

insert into pabal.plain_claims (id)
select e.id from public.event_queue e where e.status = 'processing' and e.lease is null and e.target_service is not null
on conflict do nothing;
