-- name: start_polling
-- Sets when the polling ends, and tells the other processes.
select setval('pabal.polling_until', (extract(epoch from clock_timestamp() + :time::interval) * 1000)::bigint),
       pg_notify(:channel, :payload);

-- name: find_polling_time
-- How long the polling that was announced last still takes, if the server's clock was not set back meanwhile.
select p.remaining
from (select to_timestamp(s.last_value / 1000.0) - clock_timestamp() from pabal.polling_until s) as p (remaining)
where p.remaining between interval '0' and interval '1 minute';
