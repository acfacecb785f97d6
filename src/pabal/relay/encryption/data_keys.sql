-- name: find_data_keys
select k.id, k.data_key
from pabal.relay_keys k
where k.id = any(:ids::uuid[]);

-- name: insert_data_keys
-- An account that was deleted meanwhile gets none; for one that another process was first with, nothing is inserted.
insert into pabal.relay_keys (id, account_id, data_key)
select n.id, a.id, n.data_key
from unnest(:ids::uuid[], :data_keys::text[]) as n (id, data_key)
left join public.accounts a on a.id = n.id
where a.id is not null or n.id = :hub
order by n.id
on conflict (id) do nothing;
