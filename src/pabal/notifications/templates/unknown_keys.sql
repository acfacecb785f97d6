-- name: list_unknown_keys
select t.key
from notification.templates t
where not t.key = any(:keys::text[])
  and (
      exists (select from notification.rules r where r.template_key = t.key)
      or exists (select from notification.requests r where r.state = 'pending' and r.template_key = t.key)
  )
order by t.key;
