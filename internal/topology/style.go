package topology

import (
	"strings"
	"unicode/utf8"
)

// Style is how a view is drawn.
type Style struct {
	Color bool // terminal colours
	ASCII bool // no characters beyond ASCII
	NCCL  bool // distances in NCCL's words instead of nvidia-smi's
}

const (
	colReset  = "\x1b[0m"
	colGreen  = "\x1b[32m"
	colCyan   = "\x1b[36m"
	colYellow = "\x1b[33m"
	colRed    = "\x1b[31m"
	colDim    = "\x1b[2m"
	colBold   = "\x1b[1m"
)

func (s Style) paint(color, text string) string {
	if !s.Color || color == "" || strings.TrimSpace(text) == "" {
		return text
	}
	return color + text + colReset
}

// colorOf is the colour of a distance: the nearer the greener.
func colorOf(word string) string {
	switch {
	case word == "X" || word == "LOC":
		return colDim
	case strings.HasPrefix(word, "NV") || word == "C2C":
		return colGreen
	case word == "PIX" || word == "PXB" || word == "P2C" || word == "PXN":
		return colCyan
	case word == "PHB" || word == "NODE":
		return colYellow
	case word == "SYS" || word == "DIS" || word == "SOC":
		return colRed
	}
	return ""
}

func (s Style) dot() string {
	if s.ASCII {
		return ","
	}
	return " ·"
}

// cell is a table's cell with its colour.
type cell struct {
	text, color string
}

// table writes rows with aligned columns; the last column is not padded.
func (s Style) table(b *strings.Builder, rows [][]cell, gap string) {
	var width []int
	for _, row := range rows {
		for i, c := range row {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], utf8.RuneCountInString(c.text))
		}
	}
	for _, row := range rows {
		last := len(row) - 1
		for last > 0 && row[last].text == "" {
			last--
		}
		for i, c := range row[:last+1] {
			if i > 0 {
				b.WriteString(gap)
			}
			b.WriteString(s.paint(c.color, c.text))
			if i < last {
				b.WriteString(strings.Repeat(" ", width[i]-utf8.RuneCountInString(c.text)))
			}
		}
		b.WriteByte('\n')
	}
}
