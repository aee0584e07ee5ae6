// Search that also works in pages that are opened as files. Browsers do not let such a page fetch other files, as
// mkdocs' own main.js does, but they let it load scripts: tools/docs_hooks.py writes the index as a script.
(function () {
  const input = document.getElementById("mkdocs-search-query"); // of search.html only
  const list = document.getElementById("mkdocs-search-results");
  if (!input) return;

  function load(file) {
    return new Promise((resolve, reject) => {
      const script = document.createElement("script");
      Object.assign(script, { src: `${base_url}/search/${file}`, onload: resolve, onerror: reject });
      document.head.append(script);
    });
  }

  function makeIndex(pages) {
    return lunr(function () {
      this.ref("location");
      this.field("title", { boost: 10 });
      this.field("text");
      const isModelCard = (page) => page.location.startsWith("shared/"); // come last
      pages.forEach((page) => this.add(page, { boost: isModelCard(page) ? 0.1 : 1 }));
    });
  }

  /** The words of a query as the index has them: without signs at their ends, and without stop words. */
  function split(text) {
    const words = lunr.tokenizer(text).map((word) => String(word).replace(/^\W+|\W+$/g, ""));
    return words.filter((word) => word && lunr.stopWordFilter(word));
  }

  /** Sections that contain all words; the last word may be the beginning of one. */
  function find(index, words) {
    const { OPTIONAL, REQUIRED } = lunr.Query.presence;
    const last = words.at(-1);
    if (!last) return [];
    return index.query((query) => {
      words.slice(0, -1).forEach((word) => query.term(word, { presence: REQUIRED }));
      query.term(last, { presence: OPTIONAL, boost: 5 }); // the whole word first
      const stem = String(lunr.stemmer(new lunr.Token(last))); // the index has stems: "studi" for "studies"
      query.term(stem, { presence: REQUIRED, wildcard: lunr.Query.wildcard.TRAILING, usePipeline: false });
    });
  }

  /** Some text around the first of the words. */
  function excerpt(page, words) {
    const text = page.text.replaceAll("¶", "");
    const found = words.map((word) => text.toLowerCase().indexOf(word.toLowerCase())).filter((at) => at >= 0);
    const start = Math.max(0, Math.min(...found, text.length) - 60);
    return (found.length && start ? "… " : "") + text.slice(found.length ? start : 0).slice(0, 220);
  }

  function show(pages, words) {
    list.replaceChildren(
      ...pages.map((page) => {
        const article = document.createElement("article");
        const link = Object.assign(document.createElement("a"), { textContent: page.title });
        link.href = `${base_url}/${page.location}`;
        const heading = document.createElement("h3");
        heading.append(link);
        article.append(heading, Object.assign(document.createElement("p"), { textContent: excerpt(page, words) }));
        return article;
      }),
    );
    if (!pages.length) list.textContent = list.dataset.noResultsText;
  }

  Promise.all([load("lunr.js"), load("search_index.js")]).then(() => {
    lunr.tokenizer.separator = new RegExp(searchIndex.config.separator);
    const pages = new Map(searchIndex.docs.map((page) => [page.location, page]));
    const index = makeIndex(searchIndex.docs);
    const search = () => {
      const words = split(input.value);
      show(find(index, words).map((result) => pages.get(result.ref)), words);
    };
    input.addEventListener("input", search);
    input.value = new URLSearchParams(window.location.search).get("q") || "";
    search();
  });
})();
