-- Events that a consumer claims with plain SQL are recorded, so that they are counted and returned without reading the queue.

create table if not exists pabal.event_plain_claims (
  event_id uuid primary key,
  claimed_at timestamptz not null default pabal.now()
);
comment on table pabal.event_plain_claims is 'Events that plain SQL set to processing, without a lease. Those that have ended meanwhile are removed later.';
comment on column pabal.event_plain_claims.event_id is 'The event.';
comment on column pabal.event_plain_claims.claimed_at is 'When its status became processing.';

alter table pabal.event_plain_claims enable row level security;
drop policy if exists "event_plain_claims_service_role_all" on pabal.event_plain_claims;
create policy "event_plain_claims_service_role_all" on pabal.event_plain_claims for all to service_role using (true) with check (true);
revoke all on table pabal.event_plain_claims from public, anon, authenticated;
grant select, insert, update, delete on table pabal.event_plain_claims to service_role;

create or replace function pabal.record_plain_claim() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
begin
  insert into pabal.event_plain_claims (event_id) values (new.id)
  on conflict (event_id) do update set claimed_at = excluded.claimed_at;
  return null;
end
$$;
comment on function pabal.record_plain_claim() is 'Records an event that plain SQL has claimed.';
revoke all on function pabal.record_plain_claim() from public, anon, authenticated;

drop trigger if exists event_queue_record_plain_claim on public.event_queue;
create trigger event_queue_record_plain_claim
  after update on public.event_queue
  for each row
  when (new.status = 'processing' and new.lease is null and (old.status <> 'processing' or old.lease is not null))
  execute function pabal.record_plain_claim();

drop trigger if exists event_queue_record_inserted_claim on public.event_queue;
create trigger event_queue_record_inserted_claim
  after insert on public.event_queue
  for each row
  when (new.status = 'processing' and new.lease is null)
  execute function pabal.record_plain_claim();

insert into pabal.event_plain_claims (event_id, claimed_at)
select e.id, coalesce(e.processing_started_at, e.updated_at)
from public.event_queue e
where e.status = 'processing' and e.lease is null
on conflict (event_id) do nothing;
