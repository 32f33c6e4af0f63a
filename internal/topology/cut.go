package topology

import "bytes"

// The answers in a document are most of its text, and are not read. Cutting them out first costs a tenth of having the
// decoder pass over them, which it does twice; with a thousand documents that is most of the time.

// level is which record of a document an object is.
type level int

const (
	levelOther level = iota // below everything that has answers
	levelDocument
	levelNode
	levelGPU
	levelNIC
)

// answerKeys are the derived keys of each record; the others in documentIn and its parts.
var answerKeys = map[level]map[string]bool{
	levelDocument: {"rails": true, "placement": true, "findings": true},
	levelNode:     {"islands": true},
	levelGPU:      {"peers": true, "nearest": true, "use": true, "nccl_use": true},
	levelNIC:      {"gpus": true, "why": true},
}

// below is the level of the objects in a key's value.
func (l level) below(key string) level {
	switch {
	case l == levelDocument && key == "nodes":
		return levelNode
	case l == levelNode && key == "gpus":
		return levelGPU
	case l == levelNode && key == "nics":
		return levelNIC
	}
	return levelOther
}

// cutter copies JSON without the values of answers (null takes their place) and without blanks. Lines are kept, so that
// errors still have theirs.
type cutter struct {
	in  []byte
	at  int
	out []byte
}

// withoutAnswers is a document without its answers. What is no well-formed document comes back as it was, for the decoder
// to say what is wrong with it.
func withoutAnswers(document []byte) []byte {
	c := &cutter{in: document, out: make([]byte, 0, len(document)/2)}
	if !c.value(levelDocument, 0) {
		return document
	}
	c.out = append(c.out, c.in[c.at:]...) // nothing but blanks, or an error
	return c.out
}

// blanks passes over white space and returns the byte behind it, 0 at the end.
func (c *cutter) blanks() byte {
	for ; c.at < len(c.in); c.at++ {
		switch b := c.in[c.at]; b {
		case '\n':
			c.out = append(c.out, b)
		case ' ', '\t', '\r':
		default:
			return b
		}
	}
	return 0
}

// text is the string at the current place, with its quotes; nil if it does not end.
func (c *cutter) text() []byte {
	start := c.at
	for i := start + 1; ; {
		end := bytes.IndexByte(c.in[i:], '"')
		if end < 0 {
			return nil
		}
		i += end + 1
		escapes := 0
		for k := i - 2; k > start && c.in[k] == '\\'; k-- {
			escapes++
		}
		if escapes%2 == 0 {
			c.at = i
			return c.in[start:i]
		}
	}
}

// value copies one value; false if it is not well-formed.
func (c *cutter) value(l level, depth int) bool {
	switch b := c.blanks(); {
	case depth > maxDepth || b == 0:
		return false
	case b == '"':
		text := c.text()
		c.out = append(c.out, text...)
		return text != nil
	case b == '{':
		return c.list('}', func() bool { return c.member(l, depth) })
	case b == '[':
		return c.list(']', func() bool { return c.value(l, depth+1) })
	}
	start := c.at
	for c.at < len(c.in) && bytes.IndexByte([]byte(" \t\r\n,]}:\"[{"), c.in[c.at]) < 0 {
		c.at++
	}
	c.out = append(c.out, c.in[start:c.at]...)
	return c.at > start
}

// list copies what stands between brackets.
func (c *cutter) list(end byte, element func() bool) bool {
	c.out = append(c.out, c.in[c.at])
	c.at++
	for first := true; ; first = false {
		switch b := c.blanks(); {
		case b == end:
			c.out = append(c.out, b)
			c.at++
			return true
		case b == 0:
			return false
		case !first:
			if b != ',' {
				return false
			}
			c.out = append(c.out, b)
			c.at++
		}
		if !element() {
			return false
		}
	}
}

// member copies one key and its value, or null in its place.
func (c *cutter) member(l level, depth int) bool {
	if c.blanks() != '"' {
		return false
	}
	key := c.text()
	if key == nil {
		return false
	}
	c.out = append(c.out, key...)
	if c.blanks() != ':' {
		return false
	}
	c.out = append(c.out, ':')
	c.at++
	name := key[1 : len(key)-1]
	if answerKeys[l][string(name)] {
		return c.skip()
	}
	return c.value(l.below(string(name)), depth+1)
}

// skip passes over one value. Only its brackets and strings are looked at: it is not used.
func (c *cutter) skip() bool {
	c.out = append(c.out, "null"...)
	for open := 0; c.at < len(c.in); {
		switch b := c.in[c.at]; b {
		case '"':
			if c.text() == nil {
				return false
			}
			continue
		case '{', '[':
			open++
		case '}', ']':
			if open == 0 {
				return true
			}
			open--
		case ',':
			if open == 0 {
				return true
			}
		case '\n':
			c.out = append(c.out, b)
		}
		c.at++
	}
	return false
}
