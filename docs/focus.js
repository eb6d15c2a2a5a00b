// Code and tables that scroll sideways take the keyboard's focus, so that arrow keys scroll them (WCAG 2.1.1).
const makeFocusable = () =>
  document.querySelectorAll("pre > code, .md-typeset__scrollwrap").forEach((region) => {
    if (region.scrollWidth > region.clientWidth) region.tabIndex = 0;
  });
if (typeof document$ === "undefined") addEventListener("load", makeFocusable);
else document$.subscribe(makeFocusable);
