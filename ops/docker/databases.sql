-- Run once by the PostgreSQL image: each daemon has a database of its own, and makes its tables itself.
CREATE DATABASE gateway;
CREATE DATABASE matcher;
