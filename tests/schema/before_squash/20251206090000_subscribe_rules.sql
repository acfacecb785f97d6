-- The hub receives what its rules are for, whoever wrote the rule; a list of notices is found by whose they are.

-- Rules ----------------------------------------------------------------------------------------------------------------

alter table notification.rules add column if not exists incident_path text;
comment on column notification.rules.incident_path is 'The path to what makes two emergencies one incident, where there is one.';

create or replace function notification.rule_subscribes() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
begin
  if tg_op = 'DELETE' or (tg_op = 'UPDATE' and new.id is distinct from old.id) then
    delete from pabal.subscriptions s where s.id = old.id and s.mode = 'rule';
  end if;
  if tg_op <> 'DELETE' then
    insert into pabal.subscriptions (id, service_name, mode, event_types, description, disabled_at, disabled_reason)
    values (
      new.id, 'hub', 'rule', array[new.event_pattern], 'rule ' || new.name,
      case when not new.is_active then pabal.now() end, case when not new.is_active then 'the rule is switched off' end
    )
    on conflict (id) do update
    set event_types = excluded.event_types, description = excluded.description,
        disabled_at = excluded.disabled_at, disabled_reason = excluded.disabled_reason;
  end if;
  return null;
end
$$;
comment on function notification.rule_subscribes() is 'Subscribes the hub to the events a rule is for, under the rule''s own id.';
revoke all on function notification.rule_subscribes() from public, anon, authenticated;

drop trigger if exists rules_subscribe on notification.rules;
create trigger rules_subscribe
  after insert or delete or update of id, name, event_pattern, is_active on notification.rules
  for each row
  execute function notification.rule_subscribes();

insert into pabal.subscriptions (id, service_name, mode, event_types, description, disabled_at, disabled_reason)
select r.id, 'hub', 'rule', array[r.event_pattern], 'rule ' || r.name,
       case when not r.is_active then pabal.now() end, case when not r.is_active then 'the rule is switched off' end
from notification.rules r
on conflict (id) do nothing;

-- Lists ----------------------------------------------------------------------------------------------------------------
-- One index for one service's and for everybody's, which is a little of each. No column of it ever changes, so what the lane
-- writes stays in place.

create index if not exists requests_source_idx on notification.requests (coalesce(source_service, ''), created_at desc, id desc);
