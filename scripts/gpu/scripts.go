// Package gpu holds the Python scripts that time what users of PyTorch would call, in one loop with this library, so
// that mkrun has them wherever it is.
package gpu

import "embed"

// FS holds bench.py and what it needs beside itself.
//
//go:embed bench.py mkernel.py options.py
var FS embed.FS
