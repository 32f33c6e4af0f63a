// Package rxe holds the tests of the backend ibverbs over real verbs. They run on g1, one of the two virtual machines
// with Soft-RoCE that scripts/rxe.sh boots, so they have a build tag of their own: `make test-rxe`.
package rxe
