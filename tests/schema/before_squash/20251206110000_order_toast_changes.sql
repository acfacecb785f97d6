-- Toasts: every person's changes numbered in the order they become visible, and an inbox in the order of arrival.

-- A sequence's number is drawn before its transaction commits, so a lower one could be seen after a higher one, and a stream
-- that resumes after the higher would never hear of it. Whoever changes a person's toasts therefore waits for whoever is just
-- doing so, and draws the number then. Of other people's toasts nobody waits for anybody.
create or replace function notification.line_up_toast() returns trigger
language plpgsql
set search_path = ''
as $$
begin
  perform pg_advisory_xact_lock(hashtextextended('toasts ' || new.recipient_id, 0));
  if tg_op = 'INSERT' then
    new.seq := nextval('notification.toast_changes');
  end if;
  return new;
end
$$;
comment on function notification.line_up_toast() is 'Lets one transaction at a time change a person''s toasts, so that their changes are numbered in the order of commits.';
revoke all on function notification.line_up_toast() from public, anon, authenticated;

drop trigger if exists toasts_arrive on notification.toasts;
create trigger toasts_arrive
  before insert on notification.toasts
  for each row
  execute function notification.line_up_toast();

-- Triggers run in the order of their names: this one before toasts_touch, which draws the number of a change.
drop trigger if exists toasts_change on notification.toasts;
create trigger toasts_change
  before update on notification.toasts
  for each row
  when ((old.seen_at, old.read_at, old.archived_at) is distinct from (new.seen_at, new.read_at, new.archived_at))
  execute function notification.line_up_toast();

-- A toast's id is its request's, which may have been made days before it arrived.
drop index if exists notification.toasts_inbox_idx;
create index if not exists toasts_arrival_idx on notification.toasts (recipient_id, created_at desc, id desc);
