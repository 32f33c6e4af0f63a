//go:build chromium

package topology

import (
	"context"
	"fmt"
	"image"
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
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if p, err := exec.LookPath(name); err == nil {
			path = p
			break
		}
	}
	if path == "" {
		t.Fatal("no chromium in PATH: apt-get install chromium")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	base := []string{"--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--user-data-dir=" + t.TempDir()}
	out, err := exec.CommandContext(ctx, path, append(base, args...)...).Output()
	if err != nil {
		t.Fatalf("chromium: %v", err)
	}
	return out
}

// overlaps is a page's script: it lists texts that lie on each other or leave the picture.
const overlaps = `<script>
const all=[...document.querySelectorAll('svg text')].map(t=>[t.textContent,t.getBoundingClientRect()]);
const box=document.querySelector('svg').getBoundingClientRect(), bad=[];
for(let i=0;i<all.length;i++){const a=all[i][1];
 if(a.left<box.left||a.right>box.right||a.top<box.top||a.bottom>box.bottom)bad.push('outside: '+all[i][0]);
 for(let j=0;j<i;j++){const b=all[j][1];
  if(a.left+1<b.right&&b.left+1<a.right&&a.top+2<b.bottom&&b.top+2<a.bottom)bad.push(all[j][0]+' on '+all[i][0]);}}
document.title='texts '+all.length+' bad '+bad.length+' '+bad.slice(0,5).join('; ');
</script>`

var titleText = regexp.MustCompile(`<title>texts (\d+) bad (\d+) ([^<]*)</title>`)

func TestPictures(t *testing.T) {
	broken := h200()
	broken.nvml.GPUs[3].Links = []NVLink{{Peer: PeerSwitch, Count: 12, Down: 6}}
	other := h200().node()
	other.Host = "other"
	other.NICs[2].Firmware = "x"
	two := []*Eval{NewEval(h200().node()), NewEval(other)}
	two[1].Node.NUMA[0].CPUs = "0-54,112-166" // differs, so that both are drawn
	for name, c := range map[string]struct {
		evals []*Eval
		red   bool
		w, h  int // the most it may be
	}{
		"two-h200": {two, false, 1440, 900},
		"broken":   {[]*Eval{NewEval(broken.node())}, true, 1440, 500},
		"p5":       {[]*Eval{NewEval(load(t, "lstopo/aws-p5.48xlarge.xml"))}, false, 1920, 600},
		"p6":       {[]*Eval{NewEval(load(t, "lstopo/aws-p6-b200.48xlarge.xml"))}, false, 1920, 600},
		"cascade":  {[]*Eval{NewEval(load(t, "nccl-xml/amd-16gpu-cascade.xml"))}, false, 1920, 800},
		"mesh":     {[]*Eval{NewEval(load(t, "smi/dgx1-v100-shuffled-nic-columns.txt"))}, false, 1920, 800},
		"dgx2":     {[]*Eval{NewEval(load(t, "lstopo/dgx-2h.xml"))}, false, 1920, 900},
	} {
		t.Run(name, func(t *testing.T) {
			var svg strings.Builder
			if err := WriteSVG(&svg, c.evals); err != nil {
				t.Fatal(err)
			}
			var w, h int
			if _, err := fmt.Sscanf(svg.String(), `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d"`, &w, &h); err != nil {
				t.Fatal(err)
			}
			if w > c.w || h > c.h {
				t.Errorf("%d x %d, at most %d x %d fit a screen", w, h, c.w, c.h)
			}
			dir := t.TempDir()
			if keep := os.Getenv("TOPO_PICTURES"); keep != "" {
				dir = keep
			}
			page := filepath.Join(dir, name+".html")
			if err := os.WriteFile(page, []byte("<!doctype html><body style='margin:0'>"+svg.String()+overlaps), 0o644); err != nil {
				t.Fatal(err)
			}
			m := titleText.FindSubmatch(browser(t, "--dump-dom", "file://"+page))
			if m == nil || string(m[2]) != "0" || string(m[1]) == "0" {
				t.Errorf("texts: %s", m)
			}
			shot := filepath.Join(dir, name+".png")
			browser(t, "--screenshot="+shot, fmt.Sprintf("--window-size=%d,%d", w, h), "file://"+page)
			look(t, shot, w, h, c.red)
		})
	}
}

// look checks that a picture is not blank, and shows red if and only if something is broken.
func look(t *testing.T, file string, w, h int, red bool) {
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
	if img.Bounds().Dx() != w || img.Bounds().Dy() != h {
		t.Errorf("the picture is %v, not %d x %d", img.Bounds(), w, h)
	}
	ink, reds := 0, 0
	legend := h - 60 // the legend has a red line of its own
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
	if share := float64(ink) / float64(w*h); share < 0.05 || share > 0.7 {
		t.Errorf("%.0f %% of the picture is drawn", 100*share)
	}
	if (reds > 50) != red {
		t.Errorf("%d red points, broken: %v", reds, red)
	}
}

func rgb(img image.Image, x, y int) (r, g, b uint32) {
	r, g, b, _ = img.At(x, y).RGBA()
	return r >> 8, g >> 8, b >> 8
}
