module example.org/dlock/pgx5

go 1.19

require (
	example.org/dlock v1.0.0
	github.com/jackc/pgx/v5 v5.0.0
)

replace example.org/dlock => ../
