-- Opening a relay stream is one statement: its locks end with it, even if the process that opens it is stopped meanwhile.

alter table public.relay_streams add column if not exists process_id uuid;
comment on column public.relay_streams.process_id is 'The process that it is open in; NULL if that process is of an earlier version.';

-- The locks serialise the opening of streams of an account, so that they can be counted, and the changes to a token's active
-- stream. The account's comes first. What is read after them is read by statements of their own, which see what the previous
-- holder committed. The control events that the new stream must not get are read together with the token, because the state
-- of the token includes them.
create or replace function pabal.open_relay_stream(
  token_hash text, stream_id uuid, process_id uuid, last_id bigint, life interval, event_window interval, max_streams integer, max_parked integer
) returns table (
  token_id uuid, session_id uuid, account_id uuid, rate_limit integer, paired boolean, is_invalid boolean, is_disabled boolean,
  seen_ids bigint[], is_open boolean, parked uuid[], reset uuid[], has_held boolean
)
language plpgsql
set search_path = ''
as $$
begin
  select t.*,
         array(
           select e.id from public.relay_control_events e
           where e.created_at > pabal.now() - open_relay_stream.event_window
             and (e.account_id = t.account_id or e.session_id = t.session_id)
         ),
         false
  into token_id, session_id, account_id, rate_limit, paired, is_invalid, is_disabled, seen_ids, is_open
  from (
    select s.id as token_id, s.id as session_id, s.account_id, coalesce(a.rate_limit_per_minute, 600),
           s.paired_at is not null and s.disconnected_at is null,
           s.revoked_at is not null or (s.account_id is null and s.expires_at <= pabal.now()),
           a.disabled_at is not null
    from public.relay_sessions s
    left join public.accounts a on a.id = s.account_id
    where s.token_hash = open_relay_stream.token_hash
    union all
    select a.id, null, a.id, coalesce(a.rate_limit_per_minute, 600), true, false, a.disabled_at is not null
    from public.accounts a
    where a.relay_token_hash = open_relay_stream.token_hash
  ) t;
  if token_id is null then
    return;
  end if;
  if is_invalid or is_disabled then
    return next;
    return;
  end if;
  if account_id is not null then
    perform pabal.lock_names('relay stream of account', array[account_id::text]);
  end if;
  perform pabal.lock_names('relay stream of token', array[token_id::text]);

  -- The new stream is the token's active one; the others are parked. Of more than max_parked of them, the oldest are deleted,
  -- first those whose process is gone. An account with max_streams active streams of other tokens opens no further one.
  with opened as (
    insert into public.relay_streams (id, process_id, account_id, token_id, after_id, alive_until)
    select open_relay_stream.stream_id, open_relay_stream.process_id, open_relay_stream.account_id, open_relay_stream.token_id,
           open_relay_stream.last_id, pabal.now() + open_relay_stream.life
    where (
      select count(*) from public.relay_streams s
      where s.account_id = open_relay_stream.account_id and s.token_id <> open_relay_stream.token_id
        and s.parked_at is null and s.alive_until > pabal.now()
    ) < open_relay_stream.max_streams
    returning id
  ),
  earlier as materialized (
    select s.id, s.parked_at,
           row_number() over (order by s.alive_until > pabal.now() desc, s.opened_at desc, s.id desc)
             > open_relay_stream.max_parked as is_excess
    from public.relay_streams s
    where s.token_id = open_relay_stream.token_id and exists (select from opened)
  ),
  deleted as (
    delete from public.relay_streams s using earlier e where s.id = e.id and e.is_excess
    returning s.id
  ),
  parked_now as (
    update public.relay_streams s set parked_at = pabal.now()
    from earlier e
    where s.id = e.id and not e.is_excess and e.parked_at is null
    returning s.id
  ),
  touched as (
    update public.relay_sessions s set last_seen_at = pabal.now()
    where s.id = open_relay_stream.session_id and exists (select from opened)
  )
  select exists (select from opened), array(select p.id from parked_now p), array(select d.id from deleted d),
         exists (
           select from opened
           join public.inbound_messages m
             on m.account_id = open_relay_stream.account_id and m.status = 'DELIVERED'
            and substr(m.held_by, 7, 38) = ':' || open_relay_stream.token_id || ':'
         )
  into is_open, parked, reset, has_held;
  if cardinality(parked || reset) > 0 then
    insert into public.relay_control_events (kind, account_id, session_id, data)
    values (
      'parked', open_relay_stream.account_id, open_relay_stream.session_id,
      jsonb_build_object('streams', parked || reset, 'reset', reset)
    );
  end if;
  return next;
end
$$;
comment on function pabal.open_relay_stream(text, uuid, uuid, bigint, interval, interval, integer, integer) is 'Makes a new stream the active one of its token and parks the earlier ones; returns the owner of the token. No row if there is none; not open if the token is invalid, or other tokens of the account have too many streams.';
revoke all on function pabal.open_relay_stream(text, uuid, uuid, bigint, interval, interval, integer, integer) from public, anon, authenticated;
grant execute on function pabal.open_relay_stream(text, uuid, uuid, bigint, interval, interval, integer, integer) to service_role;

-- What the token's earlier streams delivered. Without a last id, all of it is delivered again, on the new stream. With one,
-- messages up to it are held for the new stream and not delivered again, and later ones are.
-- * An earlier stream that is still open may belong to another client with the same token. It is this client's if it delivered
--   the last id or started with it; a stream that started without one started with 0, the id of its first event. The message
--   of the last id shows which stream delivered it, or one of the newest that ended. Messages of another client's stream are
--   left to their lease, which no heartbeat extends, and no longer keep their conversation on that stream.
-- * A last id that was never given out (from before a restore, or of another hub) counts as none.
-- * Messages past their queue life, and more than max_messages of them, are queued.
create or replace function pabal.resume_relay_messages(
  account_id uuid, token_id uuid, stream_id uuid, new_lease uuid, hold interval, last_id bigint, max_messages integer
) returns table (
  message_id uuid, delivery_seq bigint, conversation_key text, kakao_payload jsonb, normalized jsonb, callback_expires_at timestamptz,
  seq bigint, created_at timestamptz, attempt integer, is_offered boolean
)
language plpgsql
set search_path = ''
as $$
declare
  new_holder text := 'stream:' || token_id || ':' || stream_id;
begin
  if account_id is null then
    return;
  end if;
  return query
  with valid as materialized (
    select case when resume_relay_messages.last_id <= d.last_value then resume_relay_messages.last_id end as last
    from public.inbound_messages_delivery_seq d
  ),
  mine as materialized (
    select m.id, m.seq, m.delivery_seq, substr(m.held_by, 8) as holder, m.expires_at > pabal.now() as is_alive
    from public.inbound_messages m
    where m.account_id = resume_relay_messages.account_id and m.status = 'DELIVERED'
     and (
       m.held_by like 'stream:' || resume_relay_messages.token_id || ':%'
       or m.held_by like 'parked:' || resume_relay_messages.token_id || ':%'
       or m.held_by like 'closed:' || resume_relay_messages.token_id || ':%'
     )
    order by m.id
    for no key update
  ),
  previous as materialized (
    select b.holder
    from valid v
    cross join lateral (
      select m.holder from mine m where m.delivery_seq = v.last
      union all
      select substr(e.held_by, 8)
      from unnest(array['ACKED', 'EXPIRED', 'CANCELLED']) as status (name)
      cross join lateral (
        select m.delivery_seq, m.held_by
        from public.inbound_messages m
        where m.account_id = resume_relay_messages.account_id and m.status = status.name
        order by m.seq desc
        limit 100
      ) e
      where e.delivery_seq = v.last
    ) b
    where v.last is not null
    limit 1
  ),
  unproven as materialized (
    select s.token_id || ':' || s.id as holder
    from public.relay_streams s
    where s.token_id = resume_relay_messages.token_id and s.id <> resume_relay_messages.stream_id and s.alive_until > pabal.now()
     and coalesce(s.after_id, 0) <> (select last from valid)
     and s.token_id || ':' || s.id is distinct from (select holder from previous)
  ),
  sorted as materialized (
    select m.id, m.seq,
       case
         when u.holder is not null then 'parked'
         when m.delivery_seq <= (select last from valid) then 'kept'
         when m.is_alive then 'offered'
         else 'queued'
       end as fate
    from mine m
    left join unproven u on u.holder = m.holder
  ),
  offered as materialized (
    select o.id, nextval('public.inbound_messages_delivery_seq') as delivery_seq
    from (select s.id from sorted s where s.fate = 'offered' order by s.seq limit resume_relay_messages.max_messages) o
  ),
  held as (
    update public.inbound_messages m
    set held_by = new_holder, lease = resume_relay_messages.new_lease, leased_until = pabal.now() + resume_relay_messages.hold,
      delivery_seq = coalesce(o.delivery_seq, m.delivery_seq),
      delivered_at = case when o.id is null then m.delivered_at else pabal.now() end,
      delivery_count = m.delivery_count + case when o.id is null then 0 else 1 end
    from sorted s
    left join offered o on o.id = s.id
    where m.id = s.id and (s.fate = 'kept' or o.id is not null)
    returning m.id, m.delivery_seq, m.conversation_key, m.kakao_payload, m.normalized, m.callback_expires_at, m.seq,
         m.created_at, m.delivery_count, o.id is not null as is_offered
  ),
  given_up as (
    update public.inbound_messages m
    set status = case when s.fate = 'parked' then 'DELIVERED' else 'QUEUED' end,
      lease = case when s.fate = 'parked' then m.lease end,
      leased_until = case when s.fate = 'parked' then m.leased_until end,
      held_by = case when s.fate = 'parked' then 'parked:' || substr(m.held_by, 8) end
    from sorted s
    left join offered o on o.id = s.id
    where m.id = s.id and s.fate <> 'kept' and o.id is null
  )
  select h.* from held h;
end
$$;
comment on function pabal.resume_relay_messages(uuid, uuid, uuid, uuid, interval, bigint, integer) is 'Moves the messages that earlier streams of a token hold to its new stream, and returns them. Nothing without an account.';
revoke all on function pabal.resume_relay_messages(uuid, uuid, uuid, uuid, interval, bigint, integer) from public, anon, authenticated;
grant execute on function pabal.resume_relay_messages(uuid, uuid, uuid, uuid, interval, bigint, integer) to service_role;
