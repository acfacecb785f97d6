-- Patterns that share an anchor are all compared with every event type that has it: ten thousand patterns `order.*.x1` shared the
-- beginning `order.`. A pattern with a beginning and an end now takes the one that fewer patterns have.

create or replace function pabal.pattern_anchor(event_type text) returns text
language sql stable parallel safe
set search_path = ''
set enable_seqscan = off  -- plans are made while the table is small, and kept
as $$
  select case
    when strpos(event_type, '*') = 0 then '=' || event_type
    when p.head <> '' and p.tail <> '' then (
      select a.anchor
      from (values ('^' || p.head, length(p.head)), ('$' || p.tail, length(p.tail))) as a (anchor, size)
      cross join lateral (
        select count(*) as patterns
        from (select from pabal.subscription_patterns s where s.anchor = a.anchor collate "C" limit 1000) shared
      ) s
      order by s.patterns / 10, a.size desc, a.anchor collate "C" desc  -- in tens: a few more are no reason for a second kind
      limit 1
    )
    when p.head <> '' then '^' || p.head
    when p.tail <> '' then '$' || p.tail
    when p.middle <> '' then '~' || left(p.middle, 3)
    else '*'
  end
  from (
    select split_part(event_type, '*', 1) as head, reverse(split_part(event_type, '*', -1)) as tail,
           (select part from unnest(string_to_array(event_type, '*')) as part order by length(part) desc limit 1) as middle
  ) p
$$;
comment on function pabal.pattern_anchor(text) is 'A literal that every event type matched by this pattern contains in the same place; see pabal.event_type_anchors().';

-- One after the other, because each depends on the anchors of the others.
do $$
declare
  crowded record;
begin
  for crowded in
    select p.subscription_id, p.pattern, t.event_type
    from pabal.subscription_patterns p
    join pabal.subscriptions s on s.id = p.subscription_id
    join lateral unnest(s.event_types, s.patterns) as t (event_type, pattern) on t.pattern = p.pattern
    where p.anchor in (select anchor from pabal.subscription_patterns group by anchor having count(*) > 100)
  loop
    update pabal.subscription_patterns p
    set anchor = pabal.pattern_anchor(crowded.event_type)
    where p.subscription_id = crowded.subscription_id and p.pattern = crowded.pattern;
  end loop;
end
$$;
