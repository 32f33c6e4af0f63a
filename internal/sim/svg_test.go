package sim

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/mkrun/mkrun/internal/plan"
)

// rectangle is about where something is on the page.
type rectangle struct {
	what           string
	x0, y0, x1, y1 float64
}

type picture struct {
	width, height float64
	texts, rects  []rectangle
	tasks         map[string][]string // class of a task's path -> fills
	arrows        int
}

// parse reads an SVG and measures it; a text is taken to be 0.6 of its size wide for each character.
func parse(t *testing.T, svg []byte) *picture {
	t.Helper()
	p := &picture{tasks: make(map[string][]string)}
	d := xml.NewDecoder(bytes.NewReader(svg))
	var text *rectangle
	attr := func(e xml.StartElement, name string) string {
		for _, a := range e.Attr {
			if a.Name.Local == name {
				return a.Value
			}
		}
		return ""
	}
	number := func(e xml.StartElement, name string) float64 {
		v, err := strconv.ParseFloat(attr(e, name), 64)
		if err != nil {
			t.Fatalf("%s of <%s>: %v", name, e.Name.Local, err)
		}
		return v
	}
	inDefs := false
	var size float64
	var anchor, transform string
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return p
		}
		if err != nil {
			t.Fatalf("the picture is no XML: %v", err)
		}
		switch e := token.(type) {
		case xml.StartElement:
			switch e.Name.Local {
			case "svg":
				p.width, p.height = number(e, "width"), number(e, "height")
			case "defs":
				inDefs = true
			case "text":
				text = &rectangle{x0: number(e, "x"), y0: number(e, "y")}
				size, anchor, transform = number(e, "font-size"), attr(e, "text-anchor"), attr(e, "transform")
			case "rect":
				if !inDefs && attr(e, "x") != "" {
					x := number(e, "x")
					p.rects = append(p.rects, rectangle{attr(e, "class"), x, number(e, "y"), x + number(e, "width"), number(e, "y") + number(e, "height")})
				}
			case "path":
				switch class := attr(e, "class"); class {
				case "path":
					p.arrows++
				case "", "tick", "wait":
				default:
					p.tasks[class] = append(p.tasks[class], attr(e, "fill"))
				}
			}
		case xml.EndElement:
			switch e.Name.Local {
			case "defs":
				inDefs = false
			case "text":
				p.texts = append(p.texts, *text)
				text = nil
			}
		case xml.CharData:
			if text == nil {
				continue
			}
			w := 0.6 * size * float64(len([]rune(string(e))))
			text.what = string(e)
			x, y := text.x0, text.y0
			switch anchor {
			case "middle":
				x -= w / 2
			case "end":
				x -= w
			}
			text.x0, text.y0, text.x1, text.y1 = x, y-0.8*size, x+w, y+0.2*size
			if strings.HasPrefix(transform, "rotate(-90") {
				cx, cy := x+w/2, y
				text.x0, text.y0, text.x1, text.y1 = cx-0.8*size, cy-w/2, cx+0.2*size, cy+w/2
			}
		}
	}
}

// The picture is readable: texts neither overlap nor leave the page, and every task that did something is there.
func TestPicture(t *testing.T) {
	h, err := Named("h200")
	if err != nil {
		t.Fatal(err)
	}
	gemmAR, err := plan.GemmAR(plan.Uniform(2, 8), plan.TwoShot, plan.SumOptions{Chunks: 4})
	if err != nil {
		t.Fatal(err)
	}
	uneven, err := plan.GemmRS(plan.World{PPN: []int{1, 3, 2}}, plan.SumOptions{Chunks: 3})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		plan  *plan.Plan
		shape plan.Shape
	}{
		{agGemm(t, 2, 8, 4), plan.Shape{M: 16384, N: 3584, K: 8192}},
		{gemmRS(t, 2, 8, 4), plan.Shape{M: 8192, N: 8192, K: 3584}},
		{gemmAR, plan.Shape{M: 8192, N: 8192, K: 3584}},
		{uneven, plan.Shape{M: 3000, N: 4096, K: 1024}},
		{agGemm(t, 1, 2, 4), plan.Shape{M: 8192, N: 1024, K: 8192}},
		{agGemm(t, 1, 1, 1), plan.Shape{M: 1, N: 1, K: 8}},
		{agGemm(t, 5, 8, 1), plan.Shape{M: 16384, N: 128, K: 1024}},
	} {
		t.Run(fmt.Sprintf("%s on %v", tt.plan.Operator, tt.plan.World), func(t *testing.T) {
			r := run(t, tt.plan, h, tt.shape.M, tt.shape.N, tt.shape.K)
			var svg, again bytes.Buffer
			if err := errors.Join(r.WriteSVG(&svg, tt.plan, "bf16"), r.WriteSVG(&again, tt.plan, "bf16")); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(svg.Bytes(), again.Bytes()) {
				t.Error("two drawings of one result differ")
			}
			p := parse(t, svg.Bytes())
			for i, a := range p.texts {
				if a.x0 < 0 || a.y0 < 0 || a.x1 > p.width || a.y1 > p.height {
					t.Errorf("%q leaves the page: %+v", a.what, a)
				}
				for _, b := range p.rects {
					if b.what == "lane" && a.x0 < b.x1 && b.x0 < a.x1 && a.y0 < b.y1 && b.y0 < a.y1 {
						t.Errorf("%q is written over a lane", a.what)
					}
				}
				for _, b := range p.texts[:i] {
					if a.x0 < b.x1 && b.x0 < a.x1 && a.y0 < b.y1 && b.y0 < a.y1 {
						t.Errorf("%q and %q overlap", a.what, b.what)
					}
				}
			}
			for _, a := range p.rects {
				if a.x0 < 0 || a.y0 < 0 || a.x1 > p.width+0.1 || a.y1 > p.height {
					t.Errorf("a rectangle leaves the page: %+v", a)
				}
			}
			want := make(map[string]int)
			for _, s := range r.Spans {
				if s.Rank < maxDrawn && len(s.Blocks) > 0 {
					want[s.Role.String()]++
				}
			}
			for role, n := range want {
				if len(p.tasks[role]) != n {
					t.Errorf("%d %s tasks are drawn, %d took time", len(p.tasks[role]), role, n)
				}
			}
			for _, say := range []string{tt.plan.Operator, tt.plan.World.String(), "Predicted", "exposed", fmt.Sprint(r.Call), "Colours"} {
				if !strings.Contains(svg.String(), say) {
					t.Errorf("the picture does not say %q", say)
				}
			}
		})
	}
}

// A transfer has the colour of the segment that it feeds, and ranks have different ones.
func TestColoursTieTransfersToSegments(t *testing.T) {
	p := agGemm(t, 2, 8, 2)
	r := run(t, p, hardware[0], 4096, 1024, 1024)
	d := &drawing{r: r, p: p, ranks: 16}
	fed := 0
	for _, s := range r.Spans {
		if s.Role != plan.RoleCompute || !s.Waited {
			continue
		}
		fed++
		if by := r.Spans[s.By]; d.colourOf(by) != d.colourOf(s) {
			t.Errorf("%s has colour %s, what it feeds (%s) has %s", d.tell(by), d.colourOf(by), d.tell(s), d.colourOf(s))
		}
	}
	if fed == 0 {
		t.Error("no segment waited, so nothing was looked at")
	}
	seen := make(map[string]int)
	for rank := range 16 {
		if other, ok := seen[d.colour(rank)]; ok {
			t.Errorf("ranks %d and %d have the same colour", other, rank)
		}
		seen[d.colour(rank)] = rank
	}
}

func TestTicks(t *testing.T) {
	for _, last := range []Time{1, 7 * Nanosecond, 43 * Microsecond, 99 * Microsecond, Millisecond, 1510 * Microsecond, 46 * Millisecond, 12345 * Millisecond} {
		step := ticks(last)
		if n := float64(last) / float64(step); n > 12 || n < 4 && last > 10 {
			t.Errorf("an axis of %v has %.1f steps of %v", last, n, step)
		}
		if digits := math.Mod(math.Log10(float64(step)), 1); math.Abs(digits) > 1e-9 && math.Abs(digits-math.Log10(2)) > 1e-9 && math.Abs(digits-math.Log10(5)) > 1e-9 {
			t.Errorf("a step of %v is not round", step)
		}
	}
}
