drop table if exists pabal.throughput;
