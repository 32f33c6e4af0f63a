// Package configs holds the configuration files that are built into the mkrun binary, so that it
// works anywhere.
package configs

import "embed"

// FS holds shapes.yaml (named layers of real models), one <operator>.yaml per operator, and a JSON schema for
// each of the two kinds of file: shapes.schema.json and schema.json.
//
//go:embed *.yaml *.json
var FS embed.FS
