-- Back to the longest anchor of a pattern. The anchors that are stored remain valid.

create or replace function pabal.pattern_anchor(event_type text) returns text
language sql immutable parallel safe
set search_path = ''
as $$
  select case
    when strpos(event_type, '*') = 0 then '=' || event_type
    when p.head <> '' and length(p.head) >= length(p.tail) then '^' || p.head
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
