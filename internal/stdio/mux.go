package stdio

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"time"
	"unicode/utf8"
)

// Tag says what is written in front of each line.
type Tag string

const (
	TagRank Tag = "rank" // [ 3]
	TagHost Tag = "host" // [ 3 node2]
	TagNone Tag = "none"
)

// ParseTag reads a --tag value.
func ParseTag(s string) (Tag, error) {
	switch t := Tag(s); t {
	case TagRank, TagHost, TagNone:
		return t, nil
	}
	return "", fmt.Errorf("unknown tag %q; known: rank, host, none", s)
}

const (
	timeLayout = "15:04:05.000"
	eraseLine  = "\r\x1b[K"
	// unfinished ends the visible part of a line that another rank's output cut in two; continued
	// takes the place of the blank after the tag of the other part.
	unfinished = `\`
	continued  = '+'
)

// Output is one of the two places a Mux writes to.
type Output struct {
	Writer   io.Writer
	Terminal bool       // carriage returns replace the line in place; otherwise they are newlines
	Color    bool       // tags are coloured by rank
	Width    func() int // of the terminal, in columns; nil or 0: unknown
}

// MuxOptions configures a Mux.
type MuxOptions struct {
	Stdout, Stderr Output
	Tag            Tag
	Timestamps     bool
	Ranks          int      // size of the world; sets the width of rank numbers
	Hosts          []string // names that will appear; set the width of host names
}

// Mux writes the output of many ranks so that lines never mix: a line that is still open when another
// rank writes is broken, marked, and continued under a marked tag. With TagNone and no time stamps
// bytes pass unchanged. Safe for concurrent use.
type Mux struct {
	opts      MuxOptions
	rankWidth int
	hostWidth int

	mu       sync.Mutex
	out      map[Stream]*output
	lanes    map[laneKey]*lane
	order    []*lane // as they came, for Finish
	buf      []byte
	rawBytes bool
}

// output is a place to write to, with what its last line looks like. Two terminals are taken to be one.
type output struct {
	Output
	stream Stream
	err    error
	screen *screen
}

// broken reports an output that its error was told of; nothing more is written to it.
func (o *output) broken() bool { return o.err != nil }

type screen struct {
	open *lane // whose line stands unfinished at the bottom
	bar  *lane // whose progress line stands at the bottom; never together with open
}

// noteRank is the lane of lines that are no rank's.
const noteRank = -1

type laneKey struct {
	rank   int
	stream Stream
}

// lane is the state of one stream of one rank.
type lane struct {
	rank int
	host string
	out  *output
	at   time.Time
	part []byte // text of the open line, kept on a terminal to become a progress line
	bar  []byte // progress line: ended by \r, or begun by one, and not yet overwritten
	live bool   // the bar has no end yet: what comes next belongs to it
	cut  bool   // the open line was broken by another rank
	cr   bool   // the last byte was \r
}

// NewMux makes a Mux. Nothing is written before the first Write.
func NewMux(opts MuxOptions) *Mux {
	m := &Mux{
		opts:      opts,
		rankWidth: len(fmt.Sprint(max(opts.Ranks-1, 0))),
		lanes:     map[laneKey]*lane{},
		rawBytes:  opts.Tag == TagNone && !opts.Timestamps,
	}
	for _, h := range opts.Hosts {
		m.hostWidth = max(m.hostWidth, utf8.RuneCountInString(h))
	}
	stdout := &output{Output: opts.Stdout, stream: Stdout, screen: &screen{}}
	stderr := &output{Output: opts.Stderr, stream: Stderr, screen: &screen{}}
	if stdout.Terminal && stderr.Terminal {
		stderr.screen = stdout.screen
	}
	m.out = map[Stream]*output{Stdout: stdout, Stderr: stderr}
	return m
}

// Write writes a frame of a rank's stream. An output that cannot be written to (a closed pipe) is
// reported by one error; later frames for it are dropped.
func (m *Mux) Write(rank int, host string, stream Stream, data []byte, at time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.lane(rank, host, stream)
	if l.out.broken() || len(data) == 0 {
		return nil
	}
	l.at = at
	m.buf = m.buf[:0]
	if m.rawBytes {
		m.raw(l, data)
	} else {
		m.lines(l, data)
	}
	return m.flush(l.out)
}

// Note writes a line of mkrun's own, without a tag, on stderr: below or above what ranks wrote, never inside. Where that
// cannot be, ranks' output is still tried.
func (m *Mux) Note(text string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.lane(noteRank, "", Stderr)
	if l.out.broken() {
		return nil
	}
	m.buf = m.buf[:0]
	if m.rawBytes {
		m.raw(l, append([]byte(text), '\n'))
	} else {
		m.lines(l, append([]byte(text), '\n'))
	}
	_, err := l.out.Writer.Write(m.buf)
	return err
}

// Finish ends lines that are still open and progress lines that are still in place: the ranks that wrote them have ended.
// What comes after it stands on lines of its own.
func (m *Mux) Finish() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var first error
	for _, l := range m.order {
		m.buf = m.buf[:0]
		if !m.rawBytes {
			if l.out.screen.open == l {
				m.end(l)
			}
			if l.bar != nil {
				m.clear(l.out)
				m.line(l, l.bar)
				l.bar, l.out.screen.bar = nil, nil
			}
			l.cut, l.cr, l.live = false, false, false
		}
		if err := m.flush(l.out); err != nil && first == nil {
			first = err
		}
	}
	return first
}

func (m *Mux) flush(o *output) error {
	if o.broken() || len(m.buf) == 0 {
		return nil
	}
	if _, err := o.Writer.Write(m.buf); err != nil {
		o.err = fmt.Errorf("write the ranks' %s: %w", o.stream, err)
		return o.err
	}
	return nil
}

func (m *Mux) lane(rank int, host string, stream Stream) *lane {
	key := laneKey{rank, stream}
	l := m.lanes[key]
	if l == nil {
		out := m.out[Stdout]
		if stream == Stderr {
			out = m.out[Stderr]
		}
		l = &lane{rank: rank, host: host, out: out}
		m.lanes[key] = l
		m.order = append(m.order, l)
	}
	return l
}

// raw passes bytes through, starting a new line only where another rank's line stands open.
func (m *Mux) raw(l *lane, data []byte) {
	s := l.out.screen
	if s.open != nil && s.open != l {
		m.buf = append(m.buf, '\n')
	}
	m.buf = append(m.buf, data...)
	s.open = l
	if data[len(data)-1] == '\n' {
		s.open = nil
	}
}

func (m *Mux) lines(l *lane, data []byte) {
	for len(data) > 0 {
		text, end := data, byte(0)
		if i := bytes.IndexAny(data, lineEnds); i >= 0 {
			text, end = data[:i], data[i]
			data = data[i+1:]
			if end == '\r' && len(data) > 0 && data[0] == '\n' {
				end, data = '\n', data[1:]
			}
		} else {
			data = nil
		}
		m.segment(l, text, end)
	}
}

// segment writes the text up to one line end: \n, \r, or 0 for none yet.
func (m *Mux) segment(l *lane, text []byte, end byte) {
	afterCR := l.cr
	l.cr = end == '\r'
	if afterCR && len(text) == 0 {
		// The \n of a \r\n that came in two frames, or a \r at both ends of a progress line.
		if end == '\n' && l.bar != nil {
			m.clear(l.out)
			m.line(l, l.bar)
			l.bar = nil
			m.redraw(l.out)
		}
		return
	}
	if l.out.Terminal && (l.live || afterCR && end == 0) {
		m.liveBar(l, text, end)
		return
	}
	switch {
	case end == '\r' && l.out.Terminal:
		m.progress(l, text)
	case end == '\r' && len(text) == 0 && l.out.screen.open != l:
		// A progress line that starts with \r: there is nothing to end yet.
	default:
		m.clear(l.out)
		if l.bar != nil && l.out.screen.bar == l {
			l.out.screen.bar = nil
		}
		l.bar = nil
		m.text(l, text)
		if end != 0 {
			m.end(l)
			m.redraw(l.out)
		}
	}
}

// liveBar takes more of a progress line that a \r has begun and nothing has ended yet: such bars begin with their \r.
func (m *Mux) liveBar(l *lane, text []byte, end byte) {
	if l.live {
		text = append(l.bar, text...)
	}
	tooLong := len(text) > FrameSize // for a bar
	if l.live = end == 0 && !tooLong; l.live || end == '\r' {
		m.progress(l, text)
		return
	}
	m.clear(l.out)
	l.bar = nil
	if l.out.screen.bar == l {
		l.out.screen.bar = nil
	}
	m.text(l, text)
	if end == '\n' {
		m.end(l)
		m.redraw(l.out)
	}
}

// text writes a piece of a line and leaves the line open.
func (m *Mux) text(l *lane, text []byte) {
	s := l.out.screen
	if s.open != l {
		m.cutOpen(s)
		m.tag(l)
		s.open = l
	}
	m.buf = append(m.buf, text...)
	if l.out.Terminal && len(l.part)+len(text) <= FrameSize {
		l.part = append(l.part, text...)
	}
}

// end finishes the open line of a lane.
func (m *Mux) end(l *lane) {
	m.buf = append(m.buf, '\n')
	l.out.screen.open = nil
	l.part, l.cut = l.part[:0], false
}

// line writes a whole line.
func (m *Mux) line(l *lane, text []byte) {
	m.text(l, text)
	m.end(l)
}

// cutOpen breaks the line that another rank has left open.
func (m *Mux) cutOpen(s *screen) {
	if s.open == nil {
		return
	}
	if m.opts.Tag != TagNone {
		m.buf = append(m.buf, unfinished...)
	}
	m.buf = append(m.buf, '\n')
	s.open.cut = true
	s.open.part = s.open.part[:0]
	s.open = nil
}

// progress puts a lane's line at the bottom of the terminal, to be replaced by the next.
func (m *Mux) progress(l *lane, text []byte) {
	s := l.out.screen
	bar := append(bytes.Clone(l.part), text...)
	if len(bar) == 0 {
		return
	}
	if s.open == l {
		m.buf = append(m.buf, eraseLine...)
		s.open = nil
	}
	l.part, l.cut = l.part[:0], false
	l.bar = bar
	m.clear(l.out)
	s.bar = l
	m.redraw(l.out)
}

// clear removes the progress line from the screen; its text is kept.
func (m *Mux) clear(o *output) {
	if o.screen.bar != nil && o.screen.open == nil {
		m.buf = append(m.buf, eraseLine...)
	}
}

// redraw shows the progress line again below what was written, unless a line stands open there.
func (m *Mux) redraw(o *output) {
	l := o.screen.bar
	if l == nil || l.bar == nil || o.screen.open != nil {
		return
	}
	start := len(m.buf)
	m.tag(l)
	text := l.bar
	if o.Width != nil {
		// A line that wraps could not be erased.
		if width := o.Width() - m.tagWidth() - 1; width > 0 {
			text = firstRunes(text, width)
		}
	}
	m.buf = append(m.buf, text...)
	if start == len(m.buf) {
		o.screen.bar = nil
	}
}

func firstRunes(b []byte, n int) []byte {
	for i := range string(b) {
		if n == 0 {
			return b[:i]
		}
		n--
	}
	return b
}

func (m *Mux) tagWidth() int {
	width := 0
	if m.opts.Timestamps {
		width += len(timeLayout) + 1
	}
	switch m.opts.Tag {
	case TagRank:
		width += m.rankWidth + 3
	case TagHost:
		width += m.rankWidth + m.hostWidth + 4
	}
	return width
}

func (m *Mux) tag(l *lane) {
	if l.rank == noteRank {
		return
	}
	if m.opts.Timestamps {
		m.buf = l.at.AppendFormat(m.buf, timeLayout)
		m.buf = append(m.buf, ' ')
	}
	if m.opts.Tag == TagNone {
		return
	}
	if l.out.Color {
		m.buf = fmt.Appendf(m.buf, "\x1b[3%dm", 1+l.rank%6)
	}
	if m.opts.Tag == TagHost {
		m.buf = fmt.Appendf(m.buf, "[%*d %-*s]", m.rankWidth, l.rank, m.hostWidth, l.host)
	} else {
		m.buf = fmt.Appendf(m.buf, "[%*d]", m.rankWidth, l.rank)
	}
	if l.out.Color {
		m.buf = append(m.buf, "\x1b[39m"...)
	}
	if l.cut {
		m.buf = append(m.buf, continued)
	} else {
		m.buf = append(m.buf, ' ')
	}
}
