package request

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/mkrun/mkrun/internal/pattern"
)

// ListedShape is one of several shapes that an operator is run with.
type ListedShape struct {
	M, N, K int64  // 0: the layer says
	Layer   string // name in the catalogue
	Tokens  int64
}

// String is how people write it.
func (s ListedShape) String() string {
	if s.Layer != "" {
		return fmt.Sprintf("%s@%d", s.Layer, s.Tokens)
	}
	return fmt.Sprintf("%dx%dx%d", s.M, s.N, s.K)
}

// Of gives a request the shape.
func (s ListedShape) Of(r Request) Request {
	r.M, r.N, r.K, r.Layer, r.Tokens = s.M, s.N, s.K, s.Layer, s.Tokens
	return r
}

var (
	sizesForm = pattern.Of(`^(\d+)[x,](\d+)[x,](\d+)$`)
	layerForm = pattern.Of(`^([^@]+)@(\d+)$`)
)

// ParseShape reads MxNxK or LAYER@TOKENS, such as 8192x1024x8192 or llama3-8b/mlp-up/tp4@128.
func ParseShape(text string) (ListedShape, error) {
	if m := layerForm().FindStringSubmatch(text); m != nil {
		tokens, err := strconv.ParseInt(m[2], 10, 64)
		if err != nil || tokens < 1 {
			return ListedShape{}, fmt.Errorf("shape %q: %s is not a number of tokens", text, m[2])
		}
		return ListedShape{Layer: m[1], Tokens: tokens}, nil
	}
	m := sizesForm().FindStringSubmatch(text)
	if m == nil {
		return ListedShape{}, fmt.Errorf("shape %q: want MxNxK or LAYER@TOKENS, such as 8192x1024x8192 or llama3-8b/mlp-up/tp4@128", text)
	}
	var sizes [3]int64
	for i := range sizes {
		n, err := strconv.ParseInt(m[i+1], 10, 64)
		if err != nil || n < 1 {
			return ListedShape{}, fmt.Errorf("shape %q: each size must be at least 1", text)
		}
		sizes[i] = n
	}
	return ListedShape{M: sizes[0], N: sizes[1], K: sizes[2]}, nil
}

// maxShapes bounds a list, far above what one run gets through.
const maxShapes = 1000

// ParseShapes reads a list of shapes. What is no shape itself is the name of a file with one in each line; what follows
// a # there is a comment.
func ParseShapes(values []string) ([]ListedShape, error) {
	var list []ListedShape
	for _, value := range values {
		if sizesForm().MatchString(value) || strings.Contains(value, "@") {
			s, err := ParseShape(value)
			if err != nil {
				return nil, err
			}
			list = append(list, s)
			continue
		}
		more, err := readShapes(value)
		if err != nil {
			return nil, err
		}
		list = append(list, more...)
	}
	switch {
	case len(list) == 0:
		return nil, errors.New("no shapes: give some as MxNxK or LAYER@TOKENS, or a file with one in each line")
	case len(list) > maxShapes:
		return nil, fmt.Errorf("%d shapes; at most %d", len(list), maxShapes)
	}
	seen := make(map[ListedShape]bool)
	for _, s := range list {
		if seen[s] {
			return nil, fmt.Errorf("shape %v is there twice", s)
		}
		seen[s] = true
	}
	return list, nil
}

func readShapes(name string) ([]ListedShape, error) {
	f, err := os.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		_, form := ParseShape(name)
		return nil, fmt.Errorf("%w; and there is no file of that name", form)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the shapes: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	var list []ListedShape
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan() && n <= 10*maxShapes; n++ {
		line := lines.Text()
		if n == 1 {
			line = strings.TrimPrefix(line, "\ufeff") // editors put it there
		}
		text, _, _ := strings.Cut(line, "#")
		for _, word := range strings.Fields(text) {
			s, err := ParseShape(word)
			if err != nil {
				return nil, fmt.Errorf("%s:%d: %w", name, n, err)
			}
			list = append(list, s)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading the shapes of %s: %w", name, err)
	}
	return list, nil
}
