module example.org/dlock

go 1.19
