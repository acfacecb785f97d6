-- Triggers of the tables, and the two cleanup functions.

-- updated_at -----------------------------------------------------------------------------------------------------------
-- A statement that sets updated_at itself does not fire the trigger, which would cost about a tenth of the event lane's
-- throughput.

drop trigger if exists update_service_tokens_updated_at on public.service_tokens;
create trigger update_service_tokens_updated_at
  before update on public.service_tokens
  for each row
  when (new.updated_at is not distinct from old.updated_at)
  execute function public.update_updated_at_column();

drop trigger if exists update_refresh_tokens_updated_at on public.refresh_tokens;
create trigger update_refresh_tokens_updated_at
  before update on public.refresh_tokens
  for each row
  when (new.updated_at is not distinct from old.updated_at)
  execute function public.update_updated_at_column();

drop trigger if exists update_event_queue_updated_at on public.event_queue;
create trigger update_event_queue_updated_at
  before update on public.event_queue
  for each row
  when (new.updated_at is not distinct from old.updated_at)
  execute function public.update_updated_at_column();

-- Families -------------------------------------------------------------------------------------------------------------

create or replace function pabal.create_token_family() returns trigger
language plpgsql
set search_path = ''
as $$
begin
  insert into public.token_families (service_name, permissions, expires_at)
  values (new.service_name, new.permissions, greatest(new.expires_at, pabal.now() + interval '30 days'))
  returning id into new.family_id;
  return new;
end
$$;
comment on function pabal.create_token_family() is 'Creates the family of an access token that is inserted without one.';
revoke all on function pabal.create_token_family() from public, anon, authenticated;

drop trigger if exists service_tokens_create_family on public.service_tokens;
create trigger service_tokens_create_family
  before insert on public.service_tokens
  for each row
  when (new.family_id is null)
  execute function pabal.create_token_family();

create or replace function pabal.inherit_token_family() returns trigger
language plpgsql
set search_path = ''
as $$
begin
  new.family_id := (select family_id from public.service_tokens where id = new.service_token_id);
  return new;
end
$$;
comment on function pabal.inherit_token_family() is 'Gives a refresh token that is inserted without a family that of its access token.';
revoke all on function pabal.inherit_token_family() from public, anon, authenticated;

drop trigger if exists refresh_tokens_inherit_family on public.refresh_tokens;
create trigger refresh_tokens_inherit_family
  before insert on public.refresh_tokens
  for each row
  when (new.family_id is null)
  execute function pabal.inherit_token_family();

-- security definer: service_role may not read auth.users on Supabase.
create or replace function pabal.known_user(person uuid) returns uuid
language sql stable
security definer
set search_path = ''
as $$ select u.id from auth.users u where u.id = person $$;
comment on function pabal.known_user(uuid) is 'The id if auth.users has this user, else NULL.';
revoke all on function pabal.known_user(uuid) from public, anon, authenticated;
grant execute on function pabal.known_user(uuid) to service_role;

-- Ended events ---------------------------------------------------------------------------------------------------------

create or replace function pabal.set_event_processed_at() returns trigger
language plpgsql
set search_path = ''
as $$
begin
  new.processed_at := case
    when new.status in ('completed', 'failed', 'cancelled') then pabal.now()
  end;
  return new;
end
$$;
comment on function pabal.set_event_processed_at() is 'Sets processed_at when an event ends and clears it when the event is opened again.';
revoke all on function pabal.set_event_processed_at() from public, anon, authenticated;

-- The condition reads the new row only, so one trigger serves insert and update; it does not fire while the two agree.
drop trigger if exists event_queue_set_processed_at on public.event_queue;
create trigger event_queue_set_processed_at
  before insert or update on public.event_queue
  for each row
  when ((new.status in ('completed', 'failed', 'cancelled')) <> (new.processed_at is not null))
  execute function pabal.set_event_processed_at();

-- Dead letters ---------------------------------------------------------------------------------------------------------

create or replace function pabal.number_dead_letter() returns trigger
language plpgsql
set search_path = ''
as $$
begin
  new.original_event_id := coalesce(new.original_event_id, new.event_id, new.id);
  new.origin_id := coalesce(new.origin_id, new.original_event_id);
  new.death := 1 + (
    select coalesce(max(death), 0)
    from public.dead_letter_queue
    where original_event_id = new.original_event_id
  );
  return new;
end
$$;
comment on function pabal.number_dead_letter() is 'Numbers the dead letters of one event and keeps its id, for plain inserts too.';
revoke all on function pabal.number_dead_letter() from public, anon, authenticated;

drop trigger if exists dead_letter_queue_number on public.dead_letter_queue;
create trigger dead_letter_queue_number
  before insert on public.dead_letter_queue
  for each row
  when (new.death is null)
  execute function pabal.number_dead_letter();

-- failed is final, for any retry_count: one dead letter for each time an event became failed.
create or replace function public.move_event_to_dlq() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
begin
  insert into public.dead_letter_queue (
    id, event_id, original_event_id, origin_id,
    original_event_type, original_source_service, original_target_service, original_payload, original_envelope,
    error_message, error_code, error_stack, total_retry_count, error_history, failed_at
  ) values (
    pabal.uuid7(), new.id, new.id, coalesce(new.origin_id, new.id),
    new.event_type, new.source_service, new.target_service, new.payload,
    jsonb_strip_nulls(jsonb_build_object(
      'priority', new.priority,
      'max_retries', new.max_retries,
      'ordering_key', new.ordering_key,
      'correlation_id', new.correlation_id,
      'traceparent', new.traceparent,
      'parent_id', new.parent_id
    )),
    coalesce(new.last_error, 'Unknown error'), new.error_code, new.error_stack,
    new.retry_count, new.error_history, pabal.now()
  );
  return new;
end
$$;
comment on function public.move_event_to_dlq() is 'Writes the dead letter of an event that has become failed.';
revoke all on function public.move_event_to_dlq() from public, anon, authenticated;
grant execute on function public.move_event_to_dlq() to service_role;

drop trigger if exists event_queue_to_dlq_trigger on public.event_queue;
create trigger event_queue_to_dlq_trigger
  after update on public.event_queue
  for each row
  when (new.status = 'failed' and old.status is distinct from 'failed')
  execute function public.move_event_to_dlq();

drop trigger if exists event_queue_insert_failed_trigger on public.event_queue;
create trigger event_queue_insert_failed_trigger
  after insert on public.event_queue
  for each row
  when (new.status = 'failed')
  execute function public.move_event_to_dlq();

-- Cleanup --------------------------------------------------------------------------------------------------------------

create or replace function public.cleanup_expired_tokens() returns integer
language plpgsql
security definer
set search_path = ''
as $$
declare
  expired_count integer;
begin
  update public.service_tokens
  set is_revoked = true,
      revoked_at = pabal.now(),
      revoked_reason = 'Token expired'
  where expires_at < pabal.now() and is_revoked = false;
  get diagnostics expired_count = row_count;

  update public.refresh_tokens
  set revoked_at = pabal.now(),
      revoked_reason = 'Token expired'
  where expires_at < pabal.now() and revoked_at is null;

  return expired_count;
end
$$;
comment on function public.cleanup_expired_tokens() is '만료된 토큰을 폐기 상태로 변경';
revoke all on function public.cleanup_expired_tokens() from public, anon, authenticated;
grant execute on function public.cleanup_expired_tokens() to service_role;

-- A function with one argument would make cleanup_old_events(30) ambiguous.
drop function if exists public.cleanup_old_events(integer);
create or replace function public.cleanup_old_events(retention_days integer default 30, batch integer default null)
returns integer
language plpgsql
security definer
set search_path = ''
as $$
declare
  deleted integer;
begin
  if batch is null then
    delete from public.event_queue
    where status in ('completed', 'failed', 'cancelled')
      and processed_at < pabal.now() - make_interval(days => retention_days);
  else
    -- An event that ended before the cutoff was created before it too, and created_at has an index.
    delete from public.event_queue
    where id = any(array(
      select id
      from public.event_queue
      where status in ('completed', 'failed', 'cancelled')
        and processed_at < pabal.now() - make_interval(days => retention_days)
        and created_at < pabal.now() - make_interval(days => retention_days)
      order by created_at
      limit batch
      for update skip locked
    ));
  end if;
  get diagnostics deleted = row_count;
  return deleted;
end
$$;
comment on function public.cleanup_old_events(integer, integer) is '오래된 완료 이벤트 삭제 (기본 30일 보관)';
revoke all on function public.cleanup_old_events(integer, integer) from public, anon, authenticated;
grant execute on function public.cleanup_old_events(integer, integer) to service_role;
