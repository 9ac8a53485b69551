// the list of pages: LINKS becomes its HTML when the site is built; opens the section of the page it stands on
(nav => {
  const up = nav.dataset.up || '', here = location.pathname.replace(/\/$/, '/index.html')
  nav.innerHTML = LINKS
  const fold = (u, open) => {
    u.classList.toggle('show', open)
    for (const o of nav.querySelectorAll(`[data-bs-target="#${u.id}"]`)) {
      o.classList.toggle('collapsed', !open); o.setAttribute('aria-expanded', open) } }
  nav.querySelectorAll('.sidebar-section').forEach(u => fold(u, false))
  nav.querySelectorAll('.active').forEach(a => {
    a.classList.remove('active'); a.removeAttribute('aria-current') })
  const links = [...nav.querySelectorAll('a[href]')]
  links.forEach(a => a.setAttribute('href', up + a.getAttribute('href')))
  for (const a of links) {
    if (a.pathname !== here) continue
    a.classList.add('active'); a.setAttribute('aria-current', 'page')
    let u = a.closest('li').querySelector(':scope > .sidebar-section') || a.closest('.sidebar-section')
    for (; u; u = u.parentElement.closest('.sidebar-section')) fold(u, true)
    break }
})(document.currentScript.parentElement)
