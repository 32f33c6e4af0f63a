//go:build chromium

package topology

import (
	"context"
	"errors"
	"fmt"
	"image"
	"image/draw"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// These tests draw with a real browser: go test -tags chromium ./internal/topology. Pictures are kept
// in the folder that TOPO_PICTURES names, to be looked at.

func browser(t *testing.T, args ...string) []byte {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"} {
		if p, err := exec.LookPath(name); err == nil {
			path = p
			break
		}
	}
	if path == "" {
		t.Fatal("no chromium in PATH: scripts/setup.sh pictures")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	base := []string{"--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--user-data-dir=" + t.TempDir()}
	out, err := exec.CommandContext(ctx, path, append(base, args...)...).Output()
	if err != nil {
		t.Fatalf("chromium: %v", err)
	}
	return out
}

// overlaps is a page's script: for each picture it lists texts that lie on each other or leave the picture.
const overlaps = `<script>
document.title=[...document.querySelectorAll('svg')].map(svg=>{
 const all=[...svg.querySelectorAll('text')].map(t=>[t.textContent,t.getBoundingClientRect()]);
 const box=svg.getBoundingClientRect(), bad=[];
 for(let i=0;i<all.length;i++){const a=all[i][1];
  if(a.left<box.left||a.right>box.right||a.top<box.top||a.bottom>box.bottom)bad.push('outside: '+all[i][0]);
  for(let j=0;j<i;j++){const b=all[j][1];
   if(a.left+1<b.right&&b.left+1<a.right&&a.top+2<b.bottom&&b.top+2<a.bottom)bad.push(all[j][0]+' on '+all[i][0]);}}
 return svg.parentElement.id+' has '+all.length+' texts, bad '+bad.length+': '+bad.slice(0,5).join('; ');
}).join(' | ');
</script>`

var titleText = regexp.MustCompile(`<title>([^<]*)</title>`)

// exhibit is a picture to be looked at.
type exhibit struct {
	name  string
	evals []*Eval
	red   bool
	w, h  int // the most it may be
	svg   string
}

func (p *exhibit) draw(t *testing.T) {
	t.Helper()
	var svg strings.Builder
	if err := WriteSVG(&svg, p.evals); err != nil {
		t.Fatal(err)
	}
	most := *p
	p.svg = svg.String()
	if _, err := fmt.Sscanf(p.svg, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d"`, &p.w, &p.h); err != nil {
		t.Fatal(err)
	}
	if p.w > most.w || p.h > most.h {
		t.Errorf("%s is %d x %d, at most %d x %d fit a screen", p.name, p.w, p.h, most.w, most.h)
	}
}

// All pictures are drawn on one page, below each other: a browser's start costs more than a picture.
func TestPictures(t *testing.T) {
	broken := h200()
	broken.nvml.GPUs[3].Links = []NVLink{{Peer: PeerSwitch, Count: 12, Down: 6}}
	other := h200().node()
	other.Host = "other"
	other.NICs[2].Firmware = "x"
	two := []*Eval{NewEval(h200().node()), NewEval(other)}
	two[1].Node.NUMA[0].CPUs = "0-54,112-166" // differs, so that both are drawn
	pictures := []*exhibit{
		{name: "two-h200", evals: two, w: 1440, h: 900},
		{name: "broken", evals: []*Eval{NewEval(broken.node())}, red: true, w: 1440, h: 500},
		{name: "p5", evals: []*Eval{NewEval(load(t, "lstopo/aws-p5.48xlarge.xml"))}, w: 1920, h: 600},
		{name: "p6", evals: []*Eval{NewEval(load(t, "lstopo/aws-p6-b200.48xlarge.xml"))}, w: 1920, h: 600},
		{name: "cascade", evals: []*Eval{NewEval(load(t, "nccl-xml/amd-16gpu-cascade.xml"))}, w: 1920, h: 800},
		{name: "mesh", evals: []*Eval{NewEval(load(t, "smi/dgx1-v100-shuffled-nic-columns.txt"))}, w: 1920, h: 800},
		{name: "dgx2", evals: []*Eval{NewEval(load(t, "lstopo/dgx-2h.xml"))}, w: 1920, h: 900},
	}
	page := "<!doctype html><body style='margin:0'>"
	width, height := 0, 0
	for _, p := range pictures {
		p.draw(t)
		page += fmt.Sprintf("<div id='%s' style='height:%dpx'>%s</div>", p.name, p.h, p.svg)
		width, height = max(width, p.w), height+p.h
	}
	dir := t.TempDir()
	if keep := os.Getenv("TOPO_PICTURES"); keep != "" {
		dir = keep
	}
	file := filepath.Join(dir, "pictures.html")
	if err := os.WriteFile(file, []byte(page+overlaps), 0o644); err != nil {
		t.Fatal(err)
	}
	title := titleText.FindSubmatch(browser(t, "--dump-dom", "file://"+file))
	if title == nil {
		t.Fatal("the browser did not run the page")
	}
	verdicts := strings.Split(string(title[1]), " | ")
	if len(verdicts) != len(pictures) {
		t.Fatalf("verdicts on %d pictures of %d: %q", len(verdicts), len(pictures), verdicts)
	}
	for _, v := range verdicts {
		if strings.Contains(v, " has 0 texts") || !strings.Contains(v, " bad 0:") {
			t.Error(v)
		}
	}
	shot := filepath.Join(dir, "pictures.png")
	browser(t, "--screenshot="+shot, fmt.Sprintf("--window-size=%d,%d", width, height), "file://"+file)
	all := openPNG(t, shot)
	if all.Bounds().Dx() != width || all.Bounds().Dy() != height {
		t.Fatalf("the page is %v, not %d x %d", all.Bounds(), width, height)
	}
	top := 0
	for _, p := range pictures {
		part := image.NewRGBA(image.Rect(0, 0, p.w, p.h))
		draw.Draw(part, part.Bounds(), all, image.Pt(0, top), draw.Src)
		top += p.h
		look(t, p, part)
		if os.Getenv("TOPO_PICTURES") != "" {
			savePNG(t, filepath.Join(dir, p.name+".png"), part)
		}
	}
}

func openPNG(t *testing.T, file string) image.Image {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func savePNG(t *testing.T, file string, img image.Image) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(png.Encode(f, img), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// look checks that a picture is not blank, and shows red if and only if something is broken.
func look(t *testing.T, p *exhibit, img image.Image) {
	t.Helper()
	ink, reds := 0, 0
	legend := p.h - 60 // the legend has a red line of its own
	for y := range img.Bounds().Dy() {
		for x := range img.Bounds().Dx() {
			r, g, b := rgb(img, x, y)
			if r < 240 || g < 240 || b < 240 {
				ink++
			}
			if y < legend && r > 200 && g < 90 && b < 90 {
				reds++
			}
		}
	}
	if share := float64(ink) / float64(p.w*p.h); share < 0.05 || share > 0.7 {
		t.Errorf("%s: %.0f %% of the picture is drawn", p.name, 100*share)
	}
	if (reds > 50) != p.red {
		t.Errorf("%s: %d red points, broken: %v", p.name, reds, p.red)
	}
}

func rgb(img image.Image, x, y int) (r, g, b uint32) {
	r, g, b, _ = img.At(x, y).RGBA()
	return r >> 8, g >> 8, b >> 8
}
