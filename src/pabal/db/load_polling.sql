-- name: start_polling
-- Sets when the polling ends, unless another process set a later time, and tells the other processes.
select setval(
           'pabal.polling_until',
           greatest(s.last_value, (extract(epoch from clock_timestamp() + :time::interval) * 1000)::bigint)
       ),
       pg_notify(:channel, :payload)
from pabal.polling_until s;

-- name: find_polling_time
-- How long the polling that was announced last still takes.
select greatest(to_timestamp(s.last_value / 1000.0) - clock_timestamp(), interval '0') from pabal.polling_until s;
