drop table if exists pabal.throughput;
drop table if exists pabal.workers;
drop table if exists pabal.chores;
