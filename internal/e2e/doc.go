// Package e2e holds the tests of mkrun on several hosts. They need root and what `scripts/setup.sh testbed`
// installs, so they have a build tag of their own: `make test-hosts`.
package e2e
