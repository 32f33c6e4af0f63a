// Package configs holds the configuration files that are built into the mkrun binary, so that it
// works anywhere.
package configs

import "embed"

// FS holds shapes.yaml (named layers of real models) and one <operator>.yaml per operator.
//
//go:embed *.yaml
var FS embed.FS
