-- The rest of a long text is kept in the statement that claims the callback for its beginning, and is not shown before it.

-- A function, so that replies without a rest do not pay for one more insert.
create or replace function pabal.keep_rest_of_text(
  message uuid, account uuid, conversation text, answered timestamptz, keep interval, waits_until timestamptz, parts text
) returns bigint
language sql volatile
set search_path = ''
as $$
  with kept as (
    insert into public.relay_replies (
      id, continues, account_id, conversation_key, response, response_hash, answered_at, kept_until, waits_until
    )
    select (p.part ->> 'id')::uuid, message, account, conversation, (p.part ->> 'response')::jsonb,
           decode(p.part ->> 'hash', 'hex'), answered, answered + keep, keep_rest_of_text.waits_until
    from jsonb_array_elements(parts::jsonb) as p (part)
    returning id
  )
  select count(*) from kept
$$;
comment on function pabal.keep_rest_of_text(uuid, uuid, text, timestamptz, interval, timestamptz, text) is 'Keep the parts of a long text that its reply has no room for; the number of parts. They have the time of the reply.';
revoke all on function pabal.keep_rest_of_text(uuid, uuid, text, timestamptz, interval, timestamptz, text) from public, anon, authenticated;
grant execute on function pabal.keep_rest_of_text(uuid, uuid, text, timestamptz, interval, timestamptz, text) to service_role;

-- One that is being sent, or that is kept as a late reply and does not fit, holds the blocks behind it back.
create or replace function pabal.waits_for_beginning(message uuid, account uuid, free_outputs integer) returns boolean
language sql stable strict
set search_path = ''
as $$
  select exists (
    select from public.relay_replies f
    where f.message_id = waits_for_beginning.message and f.account_id = waits_for_beginning.account
      and (
        f.outcome = 'sending' and f.spent_by = 'agent'
        or f.kept_until > pabal.now() and f.shown_at is null
           and jsonb_array_length(f.response -> 'template' -> 'outputs') > waits_for_beginning.free_outputs
      )
  )
$$;
comment on function pabal.waits_for_beginning(uuid, uuid, integer) is 'Whether a further block of this message''s answer is not shown yet, because its beginning is not: that is being sent, or needs more than the free outputs.';
revoke all on function pabal.waits_for_beginning(uuid, uuid, integer) from public, anon, authenticated;
grant execute on function pabal.waits_for_beginning(uuid, uuid, integer) to service_role;
