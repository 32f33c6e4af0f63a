package hosts

import (
	"fmt"
	"strconv"
	"strings"
)

// MaxHosts bounds what ranges may expand to, and so a job's hosts.
const MaxHosts = 16384

// Expand writes out the ranges of a name: node[08-10,20] is node08, node09, node10 and node20. A number keeps
// the zeros in front of its range's first. Several brackets give all combinations, the last running fastest.
// More than limit names are an error, found before they are made.
func Expand(text string, limit int) ([]string, *spot) {
	open := strings.IndexByte(text, '[')
	if shut := strings.IndexByte(text, ']'); shut >= 0 && (open < 0 || shut < open) {
		return nil, spotf(shut, "\"]\" without \"[\" before it")
	}
	if open < 0 {
		if limit < 1 {
			return nil, spotf(0, "more than %d hosts", MaxHosts)
		}
		return []string{text}, nil
	}
	length := strings.IndexAny(text[open+1:], "[]")
	if length < 0 || text[open+1+length] == '[' {
		return nil, spotf(open, "\"[\" has no closing \"]\"")
	}
	end := open + 1 + length
	tails, err := Expand(text[end+1:], limit)
	if err != nil {
		return nil, err.moved(end + 1)
	}
	numbers, err := expandNumbers(text[open+1:end], limit/len(tails), fmt.Sprintf("%d hosts", MaxHosts))
	if err != nil {
		return nil, err.moved(open + 1)
	}
	names := make([]string, 0, len(numbers)*len(tails))
	for _, n := range numbers {
		for _, tail := range tails {
			names = append(names, text[:open]+n+tail)
		}
	}
	return names, nil
}

// expandNumbers writes out what is in brackets: numbers and ranges, separated by commas; no more than limit, which is said as most.
func expandNumbers(text string, limit int, most string) ([]string, *spot) {
	var out []string
	offset := 0
	for item := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(item, "-")
		if !isRange {
			last = first
		}
		lo, errLo := number(first)
		hi, errHi := number(last)
		switch {
		case errLo != nil || errHi != nil:
			return nil, spotf(offset, "%q is not a range: numbers such as 7 or 01-16, separated by commas", item)
		case hi < lo:
			return nil, spotf(offset, "range %s runs backwards", item)
		case last[0] == '0' && len(last) != len(first):
			return nil, spotf(offset, "range %s: its ends have zeros in front and different lengths", item)
		case hi-lo >= uint64(max(limit-len(out), 0)):
			return nil, spotf(offset, "more than %s", most)
		}
		width := 1
		if first[0] == '0' {
			width = len(first)
		}
		for n := lo; n <= hi; n++ {
			out = append(out, fmt.Sprintf("%0*d", width, n))
		}
		offset += len(item) + 1
	}
	return out, nil
}

// number reads digits and nothing else.
func number(s string) (uint64, error) {
	if len(s) > 15 { // wider ones would only be a way to ask for much memory
		return 0, strconv.ErrRange
	}
	return strconv.ParseUint(s, 10, 63)
}
