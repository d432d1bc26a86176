-- An ordinary project for spark-pipelines. spark.departures.arrivals is the Delta table that each day's flights are appended to.

CREATE STREAMING TABLE hourly_departures
  COMMENT 'Departures and cancellations per hour and origin.'
  AS SELECT
    origin, hour.start AS hour_start, window_time(hour) AS hour_end, flights, cancelled
  FROM (
    SELECT
      origin, window(departure, '1 hour') AS hour, count(*) AS flights, count_if(dep_delay IS NULL) AS cancelled
    FROM STREAM delta.`${spark.departures.arrivals}` WATERMARK departure DELAY OF INTERVAL 1 HOUR
    GROUP BY origin, window(departure, '1 hour')
  );
